// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
)

// Bridge is the default network: a bridge with host-local addresses.
type Bridge struct {
	Name    string // of the bridge
	Subnet  string // CIDR
	DataDir string // host-local's allocations

	ruling sync.Mutex // held while rules are checked, added and removed
	seen   int        // the index of the bridge when watch looked last; 0: there was none
}

// ownNetwork is the name of berth's own network in CNI's terms.
const ownNetwork = "berth"

// made reports whether a list is the configuration of this bridge.
func (b *Bridge) made(list *libcni.NetworkConfigList) bool {
	var conf struct {
		Bridge string `json:"bridge"`
	}
	return list.Name == ownNetwork && len(list.Plugins) > 0 && list.Plugins[0].Network.Type == "bridge" &&
		json.Unmarshal(list.Plugins[0].Bytes, &conf) == nil && conf.Bridge == b.Name
}

// exists reports whether the bridge is there. If that cannot be asked, it counts as there.
func (b *Bridge) exists() bool {
	_, err := netlink.LinkByName(b.Name)
	return !errors.As(err, new(netlink.LinkNotFoundError))
}

// conf returns the default network as a CNI list of a version.
//
// The plug-in could masquerade by itself (ipMasq), with a chain for each pod. But a deletion that
// was interrupted finds no interface when it is tried again, takes the pod for gone, and leaves the
// chain for ever. So berth has one rule for the bridge, where there is iptables to add it.
func (b *Bridge) conf(version string) []byte {
	c := map[string]any{
		"cniVersion": version,
		"name":       ownNetwork,
		"plugins": []any{
			map[string]any{
				"type":        "bridge",
				"bridge":      b.Name,
				"isGateway":   true,
				"ipMasq":      !haveIPTables(),
				"hairpinMode": true,
				"ipam": map[string]any{
					"type":    "host-local",
					"dataDir": b.DataDir,
					"ranges":  []any{[]any{map[string]any{"subnet": b.Subnet}}},
					"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}
	j, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and booleans
	}
	return j
}

// masquerade adds the bridge's rule of masquerading if it is not there. It checks each time,
// because others flush tables.
func (b *Bridge) masquerade(ctx context.Context) error {
	if !haveIPTables() {
		return nil
	}
	b.ruling.Lock()
	defer b.ruling.Unlock()
	if err := b.masquerading().add(ctx); err != nil {
		return fmt.Errorf("add masquerading rule of bridge %s: %w", b.Name, err)
	}
	return nil
}

// watch looks for the bridge, and reports whether it was deleted since it was looked for last, also
// if another one has its name now: the pods that were connected to it have no network. It is called
// by one goroutine. If the lookup fails, the bridge is looked for again at the next call.
func (b *Bridge) watch() (deleted bool) {
	index := 0
	l, err := netlink.LinkByName(b.Name)
	switch {
	case err == nil:
		index = l.Attrs().Index
	case !errors.As(err, new(netlink.LinkNotFoundError)):
		return false
	}
	deleted = b.seen != 0 && index != b.seen
	b.seen = index
	return deleted
}

// address gives the bridge an address if it has none. Its plug-in does that with the first pod; if
// it is killed before, and the pod's interface removed, the kernel takes the address away with
// that, and the plug-in fails for every pod from then on.
func (b *Bridge) address() error {
	l, err := netlink.LinkByName(b.Name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil // the plug-in makes it
	}
	if err == nil {
		if len(l.Attrs().HardwareAddr) > 0 { // it has none if it is zero
			return nil
		}
		mac := make(net.HardwareAddr, 6)
		_, _ = rand.Read(mac)        // never fails
		mac[0] = mac[0]&^0x01 | 0x02 // of one interface, and administered locally
		err = netlink.LinkSetHardwareAddr(l, mac)
	}
	if err != nil {
		return fmt.Errorf("give bridge %s an address: %w", b.Name, err)
	}
	return nil
}
