// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"berth/internal/base/retry"
)

// loopback are the addresses that only a host itself may use, and that no packet on a wire has.
const loopback = "127.0.0.0/8"

// rule is a rule of iptables.
type rule struct {
	program string // in PATH
	table   string
	args    []string // after -A, -C or -D
}

// masquerading returns the rule that masquerades the traffic of pods to all destinations but the
// bridge: it leaves under the host's address. Like the bridge the rule stays when berth ends.
func (b *Bridge) masquerading() rule {
	return rule{"iptables", "nat", append([]string{"POSTROUTING", "-s", b.Subnet, "!", "-o", b.Name}, b.comment("MASQUERADE")...)}
}

// guards returns the rules that drop traffic of pods with a loopback address, before the kernel
// counts it as part of a connection. Answers from a pod to a process that used a published port by
// the loopback have the bridge's address, and pass.
func (b *Bridge) guards() (rules []rule) {
	for _, end := range []string{"-d", "-s"} {
		rules = append(rules, rule{"iptables", "raw", append([]string{"PREROUTING", "-i", b.Name, end, loopback}, b.comment("DROP")...)})
	}
	return rules
}

func (b *Bridge) comment(target string) []string {
	return []string{"-m", "comment", "--comment", "berth: pods of " + b.Name, "-j", target}
}

// guard keeps pods from the host's loopback. It is called before a port is published for the first
// time: with that the portmap plug-in has the kernel route addresses of the loopback over the
// bridge (route_localnet, CVE-2020-8558), so that a published port is reached by them, and it
// leaves that so. If there is no iptables, the plug-in and guard use nft.
func (b *Bridge) guard(ctx context.Context) error {
	b.ruling.Lock()
	defer b.ruling.Unlock()
	var err error
	if haveIPTables() {
		for _, r := range b.guards() {
			err = errors.Join(err, r.add(ctx))
		}
	} else if haveNFT() && nft(ctx, "list chain ip "+b.nftTable()+" prerouting") != nil {
		err = nft(ctx, b.nftGuards())
	}
	if err != nil {
		return fmt.Errorf("keep the pods of bridge %s from the host's loopback, which a published port needs: %w", b.Name, err)
	}
	return nil
}

// guardAgain adds the rules of guard where they are needed and not there: others flush tables, and
// an earlier berth may have published ports without them.
func (b *Bridge) guardAgain(ctx context.Context) error {
	routed, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + b.Name + "/route_localnet")
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(routed)) == "0" {
		return nil // there is no bridge, or no published port
	}
	return b.guard(ctx)
}

// RemoveRules removes the rules of the bridge, from both firewalls, because the host may have
// switched from one to the other. It is called once the bridge is removed. Without iptables and nft
// there are none.
func (b *Bridge) RemoveRules(ctx context.Context) error {
	b.ruling.Lock()
	defer b.ruling.Unlock()
	var err error
	for _, program := range []string{"iptables", "iptables-nft", "iptables-legacy"} {
		if _, missing := exec.LookPath(program); missing != nil {
			continue
		}
		for _, r := range append(b.guards(), b.masquerading()) {
			if has, asked := hasLegacyTable(r.table); program == "iptables-legacy" && !has {
				err = errors.Join(err, asked)
				continue
			}
			r.program = program
			err = errors.Join(err, r.remove(ctx))
		}
	}
	if haveNFT() && nft(ctx, "list table ip "+b.nftTable()) == nil {
		err = errors.Join(err, nft(ctx, "delete table ip "+b.nftTable()))
	}
	if err != nil {
		return fmt.Errorf("remove rules of bridge %s: %w", b.Name, err)
	}
	return nil
}

// add adds the rule if it is not there.
func (r rule) add(ctx context.Context) error {
	if r.do(ctx, "-C") == nil {
		return nil
	}
	return r.do(ctx, "-A")
}

// remove removes the rule as often as it is there.
func (r rule) remove(ctx context.Context) error {
	for r.do(ctx, "-C") == nil {
		if err := r.do(ctx, "-D"); err != nil {
			return err
		}
	}
	return nil
}

// do runs iptables. While others change the tables it tries again, for about two seconds.
func (r rule) do(ctx context.Context, verb string) error {
	const busy = 4 // the exit code while others hold the tables
	args := append([]string{"-w", "-t", r.table, verb}, r.args...)
	var out []byte
	for wait := range retry.Doubling(ctx.Done(), 5*time.Millisecond, 2*time.Second) {
		var err error
		out, err = exec.CommandContext(ctx, r.program, args...).CombinedOutput()
		var ended *exec.ExitError
		if err == nil {
			return nil
		}
		if !errors.As(err, &ended) || ended.ExitCode() != busy || wait > time.Second {
			return fmt.Errorf("%s: %w: %s", r.program, err, bytes.TrimSpace(out))
		}
	}
	return fmt.Errorf("%s: %w: %s", r.program, ctx.Err(), bytes.TrimSpace(out))
}

func haveIPTables() bool {
	_, err := exec.LookPath("iptables")
	return err == nil
}

func haveNFT() bool {
	_, err := exec.LookPath("nft")
	return err == nil
}

// nftTable is the name of the bridge's own table of nft.
func (b *Bridge) nftTable() string { return "berth-" + b.Name }

// nftGuards makes the table with the same rules as guards, in one transaction.
func (b *Bridge) nftGuards() string {
	const text = `table ip %[1]s
delete table ip %[1]s
table ip %[1]s {
	chain prerouting {
		type filter hook prerouting priority raw; policy accept;
		iifname "%[2]s" ip daddr %[3]s drop
		iifname "%[2]s" ip saddr %[3]s drop
	}
}
`
	return fmt.Sprintf(text, b.nftTable(), b.Name, loopback)
}

func nft(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
