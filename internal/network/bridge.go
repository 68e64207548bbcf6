// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"
)

// Bridge is the default network: a bridge with host-local addresses.
type Bridge struct {
	Name    string // of the bridge
	Subnet  string // CIDR
	DataDir string // host-local's allocations

	masquerading sync.Mutex // held while the rule is looked for and made
}

// conf is the default network as a CNI list.
//
// The plug-in could masquerade by itself (ipMasq), with a chain for each pod. A deletion that was cut off, when it is tried again,
// finds no interface, takes that for a pod that is gone, and leaves the chain for ever. So berth has one rule for
// the bridge, where there is iptables to make it.
func (b *Bridge) conf() []byte {
	c := map[string]any{
		"cniVersion": "1.0.0", "name": "berth",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": b.Name, "isGateway": true, "ipMasq": !haveIPTables(), "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": b.DataDir,
					"ranges": []any{[]any{map[string]any{"subnet": b.Subnet}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
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

// Rule is the bridge's rule in the table nat, as arguments of iptables after -A, -C or -D: what pods send to elsewhere than
// the bridge leaves under the host's address. Like the bridge it stays when berth ends.
func (b *Bridge) Rule() []string {
	return []string{"POSTROUTING", "-s", b.Subnet, "!", "-o", b.Name, "-m", "comment", "--comment", "berth: pods of " + b.Name, "-j", "MASQUERADE"}
}

// masquerade makes the rule if it is not there. It looks each time: others flush tables.
func (b *Bridge) masquerade(ctx context.Context) error {
	if !haveIPTables() {
		return nil
	}
	b.masquerading.Lock()
	defer b.masquerading.Unlock()
	if iptables(ctx, append([]string{"-C"}, b.Rule()...)...) == nil {
		return nil
	}
	if err := iptables(ctx, append([]string{"-A"}, b.Rule()...)...); err != nil {
		return fmt.Errorf("masquerade what pods of bridge %s send: %w", b.Name, err)
	}
	return nil
}

// iptables changes or looks at the table nat.
func iptables(ctx context.Context, args ...string) error {
	const busy = 4 // exit code: others change the tables at this moment
	for wait := 5 * time.Millisecond; ; wait *= 2 {
		out, err := exec.CommandContext(ctx, "iptables", append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput()
		var ended *exec.ExitError
		if err == nil {
			return nil
		}
		if !errors.As(err, &ended) || ended.ExitCode() != busy || wait > time.Second {
			return fmt.Errorf("iptables: %w: %s", err, bytes.TrimSpace(out))
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("iptables: %w: %s", ctx.Err(), bytes.TrimSpace(out))
		case <-t.C:
		}
	}
}
