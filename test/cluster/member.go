// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"berth/test/command"
	"berth/test/node"
)

// member is a node of a cluster: a network namespace with a kubelet, and with a berth or
// containerd's CRI plug-in.
type member struct {
	*node.Node
	c       *cluster
	name    string
	host    node.Host
	foreign bool   // it runs containerd's CRI plug-in instead of berth
	dir     string // the kubelet's
	group   string // the cgroup below which the kubelet makes the pods' cgroups
	kubelet *node.Process
	args    []string // the kubelet's, if kubeadm has chosen them
}

// private are directories of the host in which the kubelet and kubeadm have paths that cannot be
// changed. Each node has its own.
var private = []string{"/etc", "/usr/libexec", "/var/lib", "/var/log"}

// addNode makes a node with a berth. The berth of a foreign node is there to import images, and
// gives way to containerd's CRI plug-in before the kubelet starts.
func (c *cluster) addNode(i int, host node.Host, foreign bool) *member {
	c.t.Helper()
	name := fmt.Sprintf("worker-%d", i)
	if i == 0 {
		name = "control"
	}
	dir := node.TempDir(c.t)
	// The descriptors that a service manager keeps for berth go when the service is stopped, as it is
	// on a foreign node. The one of node keeps it.
	n := node.Start(c.t, node.Options{
		Dir: dir, NetNS: host.NetNS, MountNS: node.NewMounts(c.t, dir+"/private", private...), ServiceManager: !foreign, External: foreign,
		Args: []string{"--set", "containerd.link=" + dir + "/link", "--set", "network.use_default=false"},
	})
	m := &member{Node: n, c: c, name: name, host: host, foreign: foreign, dir: n.Dir + "/k", group: n.Cgroup + "-kubelet"}
	c.members = append(c.members, m)
	c.t.Cleanup(m.stop)
	for _, d := range []string{"/manifests", "/podlogs", "/root", "/plugins"} {
		m.check(os.MkdirAll(m.dir+d, 0o750))
	}
	for _, g := range node.Groups(m.group) {
		m.check(os.MkdirAll(g, 0o755))
	}
	// A pod that asks for names of the world gets an unused address as its name server.
	m.check(os.WriteFile(m.dir+"/resolv.conf", []byte("nameserver 192.0.2.1\n"), 0o644))
	m.check(os.MkdirAll(n.Dir+"/net.d", 0o755))
	m.check(os.WriteFile(n.Dir+"/net.d/new", []byte(m.text("network")), 0o600))
	m.check(os.Rename(n.Dir+"/net.d/new", n.Dir+"/net.d/10-cluster.conflist"))
	return m
}

// text is a manifest of testdata for this node.
func (m *member) text(name string, more ...string) string {
	m.c.t.Helper()
	return m.c.text(name, append(more,
		"@KUBELET@", m.dir, "@GROUP@", m.group, "@SOCKET@", m.socket(), "@NAME@", m.name, "@NODE@", m.Node.Dir,
		"@BRIDGE@", m.Bridge, "@SUBNET@", m.Subnet, "@ADDRESS@", m.host.Address, "@EVENTED@", strconv.FormatBool(m.c.evented && !m.foreign))...)
}

// socket is the socket of the runtime.
func (m *member) socket() string {
	if m.foreign {
		return m.containerd()
	}
	return m.Node.Dir + "/berth.sock"
}

// containerd is the socket of the node's containerd.
func (m *member) containerd() string {
	if m.foreign {
		return m.Node.Dir + "/c/containerd.sock"
	}
	return m.Node.Dir + "/link"
}

// runtime is the process of the runtime.
func (m *member) runtime() *node.Process {
	if m.foreign {
		return m.Containerd
	}
	return m.Berth
}

// enroll gives a node the files that its kubelet needs to join the cluster. The first one gets the
// control plane.
func (m *member) enroll() {
	m.c.t.Helper()
	m.c.ca.issue(m.name, "system:node:"+m.name, []string{"system:nodes"}, m.name, m.host.Address)
	m.c.ca.kubeconfig(m.name, m.c.lan.Hosts[0].Address)
	m.configure()
	if m == m.c.members[0] {
		for _, program := range ofControl {
			m.check(os.WriteFile(m.dir+"/manifests/"+program+".yaml", []byte(m.text("control/"+program)), 0o600))
		}
	}
}

// configure writes the settings of the next kubelet.
func (m *member) configure() {
	m.c.t.Helper()
	m.check(os.WriteFile(m.dir+"/config.yaml", []byte(m.text("kubelet")), 0o600))
}

// route connects the nodes: each knows the way to the pods of the others, and takes packets to
// services, which kube-proxy sends elsewhere. No node has a way out.
func (c *cluster) route() {
	c.t.Helper()
	for _, m := range c.members {
		script := "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables; ip route add " + services + " dev eth0;"
		for _, other := range c.members {
			if other != m {
				script += fmt.Sprintf("ip route add %s via %s;", other.Subnet, other.host.Address)
			}
		}
		if out, err := command.New(c.t, "nsenter", "--net="+m.host.NetNS, "sh", "-ec", script).CombinedOutput(); err != nil {
			c.t.Fatalf("routes of %s: %v: %s", m.name, err, out)
		}
	}
}

// importImages gives each node the images that it may have to run.
func (c *cluster) importImages() {
	c.t.Helper()
	archives := map[string]string{}
	for _, program := range append(slices.Clone(ofControl), ofNode...) {
		archives[program] = archive(c.t, c.module, program)
	}
	c.each(func(m *member) {
		programs := ofNode
		if m == c.members[0] {
			programs = append(slices.Clone(ofControl), ofNode...)
		}
		for _, program := range programs {
			if _, err := m.Import(context.Background(), archives[program], image(program)); err != nil {
				c.t.Errorf("import of %s on %s: %v", program, m.name, err)
			}
		}
	})
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// startKubelet starts the kubelet and waits for nothing.
func (m *member) startKubelet() {
	args := m.args
	if args == nil {
		args = []string{"--config", m.dir + "/config.yaml", "--kubeconfig", m.c.ca.dir + "/" + m.name + ".conf", "--root-dir", m.dir + "/root", "--cert-dir", m.dir + "/certs",
			"--hostname-override", m.name, "--node-ip", m.host.Address, "--containerd", m.containerd(), "--v", "2"}
	}
	m.kubelet = m.SpawnInside(m.Module+"/build/bin/kubelet", args...)
}

// stop ends the kubelet and removes its files. The pods go with the node.
func (m *member) stop() {
	if m.kubelet != nil {
		m.kubelet.Kill(syscall.SIGTERM)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	m.RemoveAll(ctx)
	if m.kubelet != nil && m.c.t.Failed() {
		m.explain()
	}
	for _, left := range m.mounts() {
		m.c.t.Errorf("%s: left behind: mount %s", m.name, left)
	}
	for _, g := range node.Groups(m.group) {
		node.RemoveGroup(g)
	}
}

// mounts are the mounts below the node's directory in the runtime's namespace, except for the
// kubelet's and the test's, once no pod is left. It waits a moment until there is nothing.
func (m *member) mounts() (left []string) {
	for range 100 {
		left = nil
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", m.runtime().Pid()))
		m.note(err)
		for line := range strings.Lines(string(b)) {
			if at := strings.Fields(line)[4]; strings.HasPrefix(at, m.Node.Dir+"/") && !strings.HasPrefix(at, m.dir+"/") {
				left = append(left, at)
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return left
}

// explain logs the last lines of the logs of the kubelet and of pods of the system.
func (m *member) explain() {
	if m.kubelet == nil {
		return
	}
	m.c.t.Logf("the kubelet's log on %s:\n%s", m.name, last(m.kubelet.Output(), 100))
	logs, _ := filepath.Glob(m.dir + "/podlogs/kube-system_*/*/*.log")
	for _, l := range logs {
		if b, err := os.ReadFile(l); err == nil {
			m.c.t.Logf("%s:\n%s", l, last(string(b), 20))
		}
	}
}

// last are the last lines of a text.
func last(text string, most int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// cut takes the node off the network, and plugs it in again.
func (m *member) cut(off bool) {
	m.c.t.Helper()
	link, err := netlink.LinkByName(m.host.Link)
	m.check(err)
	if off {
		m.check(netlink.LinkSetDown(link))
	} else {
		m.check(netlink.LinkSetUp(link))
	}
}

func (m *member) check(err error) {
	m.c.t.Helper()
	if err != nil {
		m.c.t.Fatalf("%s: %v", m.name, err)
	}
}

func (m *member) note(err error) {
	m.c.t.Helper()
	if err != nil {
		m.c.t.Errorf("%s: %v", m.name, err)
	}
}
