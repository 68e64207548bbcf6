// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
)

// rules returns the lines of a table that have text in them.
func rules(t *testing.T, table, text string) (found []string) {
	t.Helper()
	out, err := exec.Command("iptables-save", "-t", table).CombinedOutput()
	if err != nil {
		t.Fatalf("iptables-save: %v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, text) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func TestThePodsOfABridgeShareOneRule(t *testing.T) {
	n := build(t, nil)
	var wg sync.WaitGroup
	for _, id := range []string{"share-a", "share-b", "share-c"} {
		wg.Go(func() { connect(t, n, id) })
	}
	wg.Wait()
	if got := rules(t, "nat", n.cfg.Default.Name); len(got) != 1 {
		t.Errorf("the bridge has %d rules: %q", len(got), got)
	}
	if got := rules(t, "nat", "share-"); len(got) != 0 {
		t.Errorf("pods have rules of their own: %q", got)
	}
}

// What a pod sends to its neighbours has the pod's address; anything else has the host's.
func TestPodsLeaveUnderTheHostsAddress(t *testing.T) {
	n := build(t, nil)
	pod, _ := connect(t, n, "a")
	neighbour, at := connect(t, n, "b")
	outside, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(outside.Close(), testutils.UnmountNS(outside)) }()
	name := fmt.Sprintf("bo%d", os.Getpid()%100000)
	host, far := net.IPv4(198, 51, 100, 1), net.IPv4(198, 51, 100, 2)
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = netlink.LinkDel(pair) }()
	peer, err := netlink.LinkByName(name + "p")
	if err != nil {
		t.Fatal(err)
	}
	up := func(l netlink.Link, ip net.IP) error {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}
		return errors.Join(netlink.AddrAdd(l, addr), netlink.LinkSetUp(l))
	}
	if err := errors.Join(netlink.LinkSetNsFd(peer, int(outside.Fd())), up(pair, host)); err != nil {
		t.Fatal(err)
	}
	if err := outside.Do(func(ns.NetNS) error { return up(peer, far) }); err != nil {
		t.Fatal(err)
	}
	inNeighbour, err := ns.GetNS(neighbour.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer inNeighbour.Close()
	own := ""
	if err := ns.WithNetNSPath(pod.NetNS, func(ns.NetNS) error {
		l, err := netlink.LinkByName(ifName)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err == nil {
			own = addrs[0].IP.String()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		where   ns.NetNS
		address string
		seen    string
	}{{outside, far.String(), host.String()}, {inNeighbour, at.IPs[0], own}} {
		if got := seenAs(t, pod.NetNS, tt.where, tt.address); got != tt.seen {
			t.Errorf("%s sees %s, want %s", tt.address, got, tt.seen)
		}
	}
}

// seenAs returns the address that a listener sees a pod's connection come from.
func seenAs(t *testing.T, pod string, where ns.NetNS, address string) string {
	t.Helper()
	var l net.Listener
	if err := where.Do(func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(address, "80"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			from <- err.Error()
			return
		}
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		_ = c.Close()
		from <- host
	}()
	if err := ns.WithNetNSPath(pod, func(ns.NetNS) error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}); err != nil {
		t.Fatal(err)
	}
	return <-from
}

// CVE-2020-8558: a port of the host that is forwarded to a pod makes the kernel route the addresses
// of the loopback over the bridge. A pod that has a route for them reached what listens on the
// host's loopback alone. The port stays published, also on that loopback.
func TestAPodDoesNotReachTheHostsLoopbackAfterAHostPort(t *testing.T) {
	n := build(t, nil)
	private, spare := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
	_, number, _ := net.SplitHostPort(spare.Addr().String())
	_ = spare.Close() // its port is free
	port, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	server, at := connectPod(t, n, Pod{
		ID:    "server",
		Ports: []PortMapping{{HostPort: int32(port), ContainerPort: 80, Protocol: "TCP"}},
	})
	intruder, _ := connect(t, n, "intruder")
	if err := ns.WithNetNSPath(server.NetNS, func(ns.NetNS) error {
		listen(t, at.IPs[0]+":80")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	gateway := strings.TrimSuffix(n.cfg.Default.Subnet, "0/24") + "1"
	for _, p := range []Pod{server, intruder} {
		// What a pod that is root in its network can do.
		attack := fmt.Sprintf("ip addr del 127.0.0.1/8 dev lo && ip route add 127.0.0.1 via %s dev eth0 && echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet", gateway)
		if out, err := exec.Command("nsenter", "--net="+p.NetNS, "sh", "-c", attack).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	look := func(when string) {
		t.Helper()
		for _, p := range []Pod{server, intruder} {
			_ = ns.WithNetNSPath(p.NetNS, func(ns.NetNS) error {
				c, err := net.DialTimeout("tcp", private.Addr().String(), time.Second/2)
				if err == nil {
					_ = c.Close()
					t.Errorf("%s: the pod %s reaches what listens on the host's loopback", when, p.ID)
				}
				return nil
			})
		}
		for _, host := range []string{"127.0.0.1", gateway} {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(host, number), 10*time.Second)
			if err != nil {
				t.Fatalf("%s: the port is not published on %s: %v", when, host, err)
			}
			_ = c.Close()
		}
	}
	look("at first")
	for _, r := range n.cfg.Default.guards() {
		if err := r.remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !n.mend(t.Context(), noNotes{}) { // as at the start of a berth, and after a change of rules
		t.Error("an attempt failed")
	}
	look("after others have flushed the rules")
	if got := rules(t, "raw", n.cfg.Default.Name); len(got) != 2 {
		t.Errorf("the bridge has %d rules: %q", len(got), got)
	}
}

// listen accepts connections at an address until the end of the test.
func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); served.Wait() })
	return l
}

// The portmap plug-in uses nft where there is no iptables, and the kernel routes the loopback's
// addresses all the same.
func TestNFTKeepsPodsFromTheLoopbackWhereThereIsNoIPTables(t *testing.T) {
	bin := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
cd %s
text=$(/bin/cat)
echo "$text" >>notes
case $text in
list*) [ -e made ] ;;
delete*) /bin/rm made ;;
*) : >made ;;
esac
`, bin)
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	b := &Bridge{Name: "b0", Subnet: "10.0.0.0/24"}
	for range 2 {
		if err := errors.Join(b.masquerade(t.Context()), b.guard(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := b.RemoveRules(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	notes, err := os.ReadFile(filepath.Join(bin, "notes"))
	if err != nil {
		t.Fatal(err)
	}
	for text, times := range map[string]int{
		"list chain ip berth-b0 prerouting":             2,
		`iifname "b0" ip daddr 127.0.0.0/8 drop`:        1,
		`iifname "b0" ip saddr 127.0.0.0/8 drop`:        1,
		"list table ip berth-b0\ndelete table":          1,
		"delete table ip berth-b0\nlist table":          1,
		"type filter hook prerouting priority raw; pol": 1,
	} {
		if got := strings.Count(string(notes), text); got != times {
			t.Errorf("%q: %d times, want %d:\n%s", text, got, times, notes)
		}
	}
	if _, err := os.Stat(filepath.Join(bin, "made")); err == nil {
		t.Error("the table is left")
	}
}
