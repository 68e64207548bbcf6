// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"berth/internal/retry"
)

// Bridge is the default network: a bridge with host-local addresses.
type Bridge struct {
	Name    string // of the bridge
	Subnet  string // CIDR
	DataDir string // host-local's allocations

	masquerading sync.Mutex // held while the rule is checked and added
	seen         int        // the index of the bridge when watch looked last; 0: there was none
}

// conf returns the default network as a CNI list of a version.
//
// The plug-in could masquerade by itself (ipMasq), with a chain for each pod. But a deletion that
// was interrupted finds no interface when it is tried again, takes the pod for gone, and leaves the
// chain for ever. So berth has one rule for the bridge, where there is iptables to add it.
func (b *Bridge) conf(version string) []byte {
	c := map[string]any{
		"cniVersion": version,
		"name":       "berth",
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

func haveIPTables() bool {
	_, err := exec.LookPath("iptables")
	return err == nil
}

// rule returns the bridge's rule in the table nat, as arguments of iptables after -A, -C or -D:
// what pods send to any place but the bridge leaves under the host's address. Like the bridge it
// stays when berth ends.
func (b *Bridge) rule() []string {
	return []string{
		"POSTROUTING", "-s", b.Subnet, "!", "-o", b.Name,
		"-m", "comment", "--comment", "berth: pods of " + b.Name, "-j", "MASQUERADE",
	}
}

// masquerade adds the rule if it is not there. It checks each time, because others flush tables.
func (b *Bridge) masquerade(ctx context.Context) error {
	if !haveIPTables() {
		return nil
	}
	b.masquerading.Lock()
	defer b.masquerading.Unlock()
	if iptables(ctx, append([]string{"-C"}, b.rule()...)...) == nil {
		return nil
	}
	if err := iptables(ctx, append([]string{"-A"}, b.rule()...)...); err != nil {
		return fmt.Errorf("add masquerading rule of bridge %s: %w", b.Name, err)
	}
	return nil
}

// watch looks for the bridge, and reports whether it was deleted since it was looked for last, also if
// another one has its name now: the pods that were connected to it have no network. It is called by one
// goroutine. What cannot be looked for is looked for again.
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

// Unmasquerade removes the rule. It is called before the bridge is removed. Without iptables there
// is no rule.
func (b *Bridge) Unmasquerade(ctx context.Context) error {
	if !haveIPTables() {
		return nil
	}
	b.masquerading.Lock()
	defer b.masquerading.Unlock()
	for iptables(ctx, append([]string{"-C"}, b.rule()...)...) == nil {
		if err := iptables(ctx, append([]string{"-D"}, b.rule()...)...); err != nil {
			return fmt.Errorf("remove masquerading rule of bridge %s: %w", b.Name, err)
		}
	}
	return nil
}

// iptables runs a command on the table nat. While others change the tables it tries again, for
// about two seconds.
func iptables(ctx context.Context, args ...string) error {
	const busy = 4 // the exit code while others hold the tables
	var out []byte
	for wait := range retry.Doubling(ctx.Done(), 5*time.Millisecond, 2*time.Second) {
		var err error
		out, err = exec.CommandContext(ctx, "iptables", append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput()
		var ended *exec.ExitError
		if err == nil {
			return nil
		}
		if !errors.As(err, &ended) || ended.ExitCode() != busy || wait > time.Second {
			return fmt.Errorf("iptables: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	return fmt.Errorf("iptables: %w: %s", ctx.Err(), bytes.TrimSpace(out))
}
