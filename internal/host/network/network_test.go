// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth/internal/host/namespace"
)

var bridges int

// build makes a Network with directories, a bridge and a subnet of its own, and with the real
// plug-ins.
func build(t *testing.T, edit func(*Config)) *Network {
	t.Helper()
	bin, err := filepath.Abs("../../../build/cni")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "bridge")); err != nil {
		t.Fatalf("%v: run `make tools`", err)
	}
	bridges++
	dir := t.TempDir()
	cfg := Config{
		ConfDir:  dir + "/net.d",
		BinDirs:  []string{bin},
		CacheDir: dir + "/cache",
		Logger:   slog.New(slog.DiscardHandler),
		Groups:   groups(t),
		Default:  &Bridge{Name: fmt.Sprintf("bn%d-%d", os.Getpid()%10000, bridges), Subnet: fmt.Sprintf("10.%d.%d.0/24", 200+bridges%50, os.Getpid()%250), DataDir: dir + "/ipam"},
	}
	name := cfg.Default.Name
	if edit != nil {
		edit(&cfg)
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkDel(l)
		}
		if cfg.Default != nil {
			if err := cfg.Default.RemoveRules(context.Background()); err != nil {
				t.Error(err)
			}
		}
		b, _ := os.ReadFile("/proc/self/mountinfo")
		if strings.Contains(string(b), dir) {
			t.Errorf("a mount is left below %s", dir)
		}
	})
	return n
}

// pinned makes a network namespace that ends with the test, and returns the path of its pin.
func pinned(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", "--net="+path, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := namespace.Unpin(path); err != nil {
			t.Error(err)
		}
	})
	return path
}

// connect makes a namespace and connects it. The end of the test undoes both.
func connect(t *testing.T, n *Network, id string) (Pod, Result) {
	t.Helper()
	return connectPod(t, n, Pod{ID: id})
}

// connectPod is connect for a pod that has an ID and what the test is about.
func connectPod(t *testing.T, n *Network, p Pod) (Pod, Result) {
	t.Helper()
	p.Name, p.Namespace, p.UID, p.NetNS = p.ID, "ns", "u", pinned(t)
	r, err := n.Setup(t.Context(), p)
	t.Cleanup(func() {
		// While others change the host's tables the kernel says that it is busy. berth's lanes try
		// again.
		err := n.Teardown(context.Background(), p, r)
		for i := 0; err != nil && i < 20; i++ {
			time.Sleep(50 * time.Millisecond)
			err = n.Teardown(context.Background(), p, r)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, r
}

// The bridge plug-in of the first pod was killed before it gave the bridge an address of its own,
// so that the bridge lost the one that it had from the pod's interface: no pod could be connected.
func TestABridgeWithoutAnAddressGetsOne(t *testing.T) {
	n := build(t, nil)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.cfg.Default.Name}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: bridge.Name + "a"}, PeerName: bridge.Name + "b"}
	if err := errors.Join(netlink.LinkAdd(port), netlink.LinkSetMaster(port, bridge), netlink.LinkDel(port)); err != nil {
		t.Fatal(err)
	}
	if l, err := netlink.LinkByName(bridge.Name); err != nil || len(l.Attrs().HardwareAddr) > 0 {
		t.Fatalf("the bridge has an address: %v, %v", l.Attrs().HardwareAddr, err)
	}
	connect(t, n, "p1")
}

func TestTwoPodsReachEachOtherOverTheDefaultBridge(t *testing.T) {
	n := build(t, nil)
	if err := n.Status(); err != nil {
		t.Fatal(err)
	}
	a, ra := connect(t, n, "a")
	b, rb := connect(t, n, "b")
	if len(ra.IPs) != 1 || len(rb.IPs) != 1 || ra.IPs[0] == rb.IPs[0] {
		t.Fatalf("%v %v", ra.IPs, rb.IPs)
	}
	var l net.Listener
	if err := ns.WithNetNSPath(a.NetNS, func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(ra.IPs[0], "80"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		c, err := l.Accept()
		if err == nil {
			_, _ = c.Write([]byte("hello"))
			_ = c.Close()
		}
	})
	err := ns.WithNetNSPath(b.NetNS, func(ns.NetNS) error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		got, err := io.ReadAll(c)
		if string(got) != "hello" {
			return fmt.Errorf("got %q: %w", got, err)
		}
		return nil
	})
	if err != nil {
		_ = l.Close()
		t.Fatal(err)
	}
}

func TestTeardownWorksTwiceAndWithoutTheNamespace(t *testing.T) {
	n := build(t, nil)
	p, r := connect(t, n, "a")
	if err := namespace.Unpin(p.NetNS); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Teardown(t.Context(), p, r); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(n.cfg.Default.DataDir + "/*/10.*"); len(left) != 0 {
		t.Errorf("addresses are still taken: %v", left)
	}
}

func TestNamesThatWouldBeArgumentsAreRefused(t *testing.T) {
	n := build(t, nil)
	for _, p := range []Pod{{ID: "a", Name: "x;IgnoreUnknown=0"}, {ID: "a", Namespace: "a=b"}, {ID: "a", UID: "a\nb"}} {
		if _, err := n.Setup(t.Context(), p); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// fake installs a plug-in that writes down each command and its configuration.
func fake(t *testing.T) (bin, notes string) {
	t.Helper()
	bin = t.TempDir()
	notes = filepath.Join(bin, "notes")
	script := `#!/bin/sh
if [ "$CNI_COMMAND" = VERSION ]; then echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}'; exit; fi
echo "$CNI_COMMAND $(cat)" >> ` + notes + `
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.9.9/24"}]}'
exit 0
`
	if err := os.WriteFile(filepath.Join(bin, "fake"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return bin, notes
}

func conflist(name, mark string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"fake","mark":%q}]}`, name, mark)
}

func TestTeardownUsesTheConfigurationOfSetup(t *testing.T) {
	bin, notes := fake(t)
	n := build(t, func(c *Config) {
		c.BinDirs, c.Default = []string{bin}, nil
		if err := errors.Join(os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/1.conflist", conflist("one", "first"), 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	p := Pod{ID: "a", Name: "a", NetNS: pinned(t)}
	r, err := n.Setup(t.Context(), p)
	if err != nil || len(r.IPs) != 1 || r.IPs[0] != "10.9.9.9" {
		t.Fatalf("%+v %v", r, err)
	}
	if err := os.WriteFile(n.cfg.ConfDir+"/1.conflist", conflist("one", "second"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.reload()
	if err := n.Teardown(t.Context(), p, r); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(notes)
	if s := string(b); strings.Contains(s, "second") || !strings.Contains(s, "DEL") || strings.Count(s, "first") != 2 {
		t.Errorf("the plug-in got:\n%s", s)
	}
}

// Pods of a runtime handler are connected by the directory of that handler, if it has one, and are
// refused while that is empty.
func TestAHandlerHasADirectoryOfItsOwn(t *testing.T) {
	bin, notes := fake(t)
	n := build(t, func(c *Config) {
		c.BinDirs, c.Default = []string{bin}, nil
		c.Handlers = map[string]string{"vm": c.ConfDir + "-vm", "none": c.ConfDir + "-none"}
		for dir, name := range map[string]string{c.ConfDir: "common", c.Handlers["vm"]: "own"} {
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/1.conflist", conflist(name, name), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	})
	for _, handler := range []string{"", "runc", "vm"} {
		p := Pod{ID: "a", Name: "a", Handler: handler, NetNS: pinned(t)}
		r, err := n.Setup(t.Context(), p)
		if err == nil {
			err = n.Teardown(t.Context(), p, Result{}) // as after a kill, without what Setup returned
		}
		if err != nil || len(r.IPs) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		b, err := os.ReadFile(notes)
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "own", false: "common"}[handler == "vm"]
		if strings.Count(string(b), want) != 4 || strings.Count(string(b), "\n") != 2 { // a name and a mark for each call
			t.Errorf("handler %q: the plug-in got:\n%s", handler, b)
		}
		if err := os.Remove(notes); err != nil {
			t.Fatal(err)
		}
	}
	_, err := n.Setup(t.Context(), Pod{ID: "b", Name: "b", Handler: "none"})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "handler none") {
		t.Errorf("%v", err)
	}
}

// The plug-in that publishes ports was started for pods without any, which it has nothing to do
// for.
func TestPortmapIsNotStartedForAPodWithoutPorts(t *testing.T) {
	bin, notes := fake(t)
	if err := os.Symlink("fake", filepath.Join(bin, portmap)); err != nil {
		t.Fatal(err)
	}
	n := build(t, func(c *Config) {
		c.BinDirs, c.Default = []string{bin}, nil
		list := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"fake"},{"type":"portmap","capabilities":{"portMappings":true}}]}`
		if err := errors.Join(os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/1.conflist", []byte(list), 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	for _, ports := range [][]PortMapping{nil, {{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}}} {
		p := Pod{ID: fmt.Sprint("pod", len(ports)), Name: "a", NetNS: pinned(t), Ports: ports}
		r, err := n.Setup(t.Context(), p)
		if err != nil || len(r.IPs) != 1 {
			t.Fatalf("%+v %v", r, err)
		}
		if err := n.Teardown(t.Context(), p, r); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(notes)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(b), `"type":"portmap"`); got != 2*len(ports) {
			t.Errorf("with %d ports: portmap was called %d times:\n%s", len(ports), got, b)
		}
	}
}

func TestTheDirectoryIsFollowed(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	bin, _ := fake(t)
	n := build(t, func(c *Config) { c.BinDirs, c.Default = []string{bin}, nil })
	if err := n.Status(); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), n.cfg.ConfDir) {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = n.Run(ctx, noNotes{}) })
	defer wg.Wait()
	defer cancel()
	until := func(name string) {
		t.Helper()
		for range 1000 {
			if got, _, _ := n.Active(); got == name {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("%q is not in use", name)
	}
	write := func(file string, b []byte) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(n.cfg.ConfDir, 0o755), os.WriteFile(filepath.Join(n.cfg.ConfDir, file), b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("5.conflist", conflist("five", ""))
	until("five")
	write("1.conflist", []byte("{ this is not JSON"))
	// a FIFO held up the reading, and the start of berth, without a word
	for _, name := range []string{"1.conf", "11.conflist"} {
		if err := unix.Mkfifo(filepath.Join(n.cfg.ConfDir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("2.conflist", conflist("two", ""))
	until("two")
	if err := os.RemoveAll(n.cfg.ConfDir); err != nil {
		t.Fatal(err)
	}
	until("")
	write("9.conf", []byte(`{"cniVersion":"1.0.0","name":"nine","type":"fake"}`))
	until("nine")
}

// The kubelet takes a pod without an address for one to make again, for ever. Plug-ins that give it
// none, or one of the loopback alone, have failed, and what they have made is undone.
// Of several configurations that of the named network is used, and of several addresses one of the
// preferred kind is the first.
func TestTheNetworkAndTheFirstAddressAreChosen(t *testing.T) {
	bin, _ := fake(t)
	script, err := os.ReadFile(filepath.Join(bin, "fake"))
	if err != nil {
		t.Fatal(err)
	}
	dual := strings.ReplaceAll(string(script), `{"address":"10.9.9.9/24"}`, `{"address":"10.9.9.9/24"},{"address":"fd00::9/64"},{"address":"10.9.9.8/24"}`)
	if err := os.WriteFile(filepath.Join(bin, "fake"), []byte(dual), 0o755); err != nil {
		t.Fatal(err)
	}
	for prefer, want := range map[string]string{"cni": "10.9.9.9 fd00::9 10.9.9.8", "ipv4": "10.9.9.9 10.9.9.8 fd00::9", "ipv6": "fd00::9 10.9.9.9 10.9.9.8"} {
		n := build(t, func(c *Config) {
			c.BinDirs, c.Default, c.Prefer, c.Name = []string{bin}, nil, prefer, "two"
			for _, name := range []string{"one", "two"} {
				if err := errors.Join(os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/"+name+".conflist", conflist(name, ""), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
		})
		r, err := n.Setup(t.Context(), Pod{ID: "a", Name: "a", NetNS: pinned(t)})
		if got := strings.Join(r.IPs, " "); err != nil || got != want || !strings.Contains(string(r.Conf), `"two"`) {
			t.Errorf("%s: %s of %s, %v", prefer, got, r.Conf, err)
		}
		if err := os.Remove(n.cfg.ConfDir + "/two.conflist"); err != nil {
			t.Fatal(err)
		}
		n.reload()
		if _, err := n.Setup(t.Context(), Pod{ID: "b", Name: "b"}); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "network two") {
			t.Errorf("without the network: %v", err)
		}
	}
}

func TestAPodWithoutAnAddressIsNotConnected(t *testing.T) {
	bin, notes := fake(t)
	n := build(t, func(c *Config) {
		c.BinDirs, c.Default = []string{bin}, nil
		if err := errors.Join(os.MkdirAll(c.ConfDir, 0o755), os.WriteFile(c.ConfDir+"/1.conflist", conflist("nowhere", ""), 0o600)); err != nil {
			t.Fatal(err)
		}
	})
	script, err := os.ReadFile(filepath.Join(bin, "fake"))
	if err != nil {
		t.Fatal(err)
	}
	for _, ips := range []string{`[]`, `[{"address":"127.0.0.1/8"},{"address":"::1/128"}]`} {
		silent := strings.ReplaceAll(string(script), `[{"address":"10.9.9.9/24"}]`, ips)
		if err := os.WriteFile(filepath.Join(bin, "fake"), []byte(silent), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := n.Setup(t.Context(), Pod{ID: "a", Name: "a", NetNS: pinned(t)})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "network nowhere") || !strings.Contains(err.Error(), "(fake)") {
			t.Errorf("%s: %v", ips, err)
		}
		b, err := os.ReadFile(notes)
		if err != nil || !strings.HasPrefix(string(b), "ADD") || strings.Count(string(b), "DEL") != 1 {
			t.Errorf("%s: %v: %s", ips, err, b)
		}
		if err := os.Remove(notes); err != nil {
			t.Fatal(err)
		}
	}
}
