// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/internal/host/namespace"
)

// LAN is a bridge of this host and network namespaces that are connected to it, as if each was a
// host of its own. It is removed at the end of the test.
type LAN struct {
	Address string // of this host on the bridge
	Hosts   []Host
}

// Host is a network namespace for [Options].
type Host struct {
	NetNS   string // the path of the namespace
	Address string
	Link    string // its end of the cable on the bridge: a host whose Link is down is cut off
}

// NewLAN makes a bridge with that many hosts.
func NewLAN(t testing.TB, hosts int) *LAN {
	t.Helper()
	k := int(instances.Add(1))
	subnet := fmt.Sprintf("10.%d.%d.", network(), k%250+1)
	name := fmt.Sprintf("bl%d-%d", os.Getpid()%100000, k)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(bridge); err != nil {
			t.Error(err)
		}
	})
	l := &LAN{Address: subnet + "1"}
	if err := up(bridge, l.Address); err != nil {
		t.Fatal(err)
	}
	for i := range hosts {
		h := Host{Address: fmt.Sprintf("%s%d", subnet, i+2), Link: fmt.Sprintf("%s-%d", name, i)}
		fd, err := attach(bridge, h.Link, h.Address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		h.NetNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
		l.Hosts = append(l.Hosts, h)
	}
	return l
}

// up gives a link its address.
func up(link netlink.Link, address string) error {
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(24, 32)}}); err != nil {
		return fmt.Errorf("address of %s: %w", link.Attrs().Name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// attach makes a namespace and connects it to a bridge. The returned descriptor keeps the
// namespace.
func attach(bridge netlink.Link, name, address string) (fd int, err error) {
	err = namespace.InThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, err
	}
	if err := connect(bridge, name, fd); err != nil {
		return fd, err
	}
	return fd, namespace.InThread(func() error {
		if err := namespace.EnterNetwork(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
			return err
		}
		return inside(address)
	})
}

// connect makes a veth pair, with one end in a namespace and the other one on a bridge.
func connect(bridge netlink.Link, name string, fd int) error {
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(fd)}
	if err := netlink.LinkAdd(cable); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return netlink.LinkSetUp(cable)
}

// inside sets up the links of the namespace of this thread.
func inside(address string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	eth, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return up(eth, address)
}
