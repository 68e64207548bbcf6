// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
)

// rules returns the lines of the table nat that have text in them.
func rules(t *testing.T, text string) (found []string) {
	t.Helper()
	out, err := exec.Command("iptables-save", "-t", "nat").CombinedOutput()
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
	if got := rules(t, n.cfg.Default.Name); len(got) != 1 {
		t.Errorf("the bridge has %d rules: %q", len(got), got)
	}
	if got := rules(t, "share-"); len(got) != 0 {
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
