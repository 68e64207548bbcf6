// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func newNetworks(t testing.TB) *Networks {
	t.Helper()
	n, err := NewNetworks(filepath.Join(t.TempDir(), "netns"), "test")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestANamespaceIsMadeOnceAndRemovedForGood(t *testing.T) {
	n := newNetworks(t)
	path := n.PathFor("p1")
	for range 2 {
		if err := n.Create(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	err = ns.WithNetNSPath(path, func(ns.NetNS) error {
		in, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil || in == own {
			return fmt.Errorf("it is the host's: %s, %w", in, err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if lo.Attrs().Flags&net.FlagUp == 0 {
			return errors.New("loopback is down")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := n.Pinned(t.Context()); err != nil || len(l) != 1 || n.PathFor(l[0]) != path {
		t.Errorf("%v %v", l, err)
	}
	for range 2 {
		if err := n.Remove(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	if l, _ := n.Pinned(t.Context()); len(l) != 0 {
		t.Errorf("%v", l)
	}
	if now, _ := os.Readlink("/proc/self/ns/net"); now != own {
		t.Error("the process changed its namespace")
	}
}

func TestPathsOutsideTheDirectoryAreRefused(t *testing.T) {
	n := newNetworks(t)
	for _, p := range []string{"/etc/passwd", n.dir + "/../x", "x"} {
		if err := n.Create(t.Context(), p); !errdefs.IsInvalidArgument(err) {
			t.Errorf("make %s: %v", p, err)
		}
		if err := n.Remove(t.Context(), p); !errdefs.IsInvalidArgument(err) {
			t.Errorf("remove %s: %v", p, err)
		}
	}
}

// Nobody can look below a file. That does not mean that nothing is pinned there.
func TestAPinThatCannotBeLookedForIsNotTakenForAbsent(t *testing.T) {
	n := newNetworks(t)
	if err := errors.Join(os.Remove(n.dir), os.WriteFile(n.dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := n.Create(t.Context(), n.PathFor("p1")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("%v", err)
	}
}

func BenchmarkNetworks(b *testing.B) {
	n := newNetworks(b)
	for b.Loop() {
		if err := errors.Join(n.Create(b.Context(), n.PathFor("x")), n.Remove(b.Context(), n.PathFor("x"))); err != nil {
			b.Fatal(err)
		}
	}
}
