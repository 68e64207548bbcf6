// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"

	"berth/test/node"
)

// member is a node of a cluster: a network namespace with a berth and a kubelet.
type member struct {
	*node.Node
	c       *cluster
	name    string
	host    node.Host
	dir     string // the kubelet's
	group   string // the cgroup below which the kubelet makes those of pods
	kubelet *node.Process
}

// join makes a node, with what its kubelet needs to join the cluster. The first one gets the control
// plane.
func (c *cluster) join(i int, host node.Host) {
	c.t.Helper()
	name := fmt.Sprintf("worker-%d", i)
	if i == 0 {
		name = "control"
	}
	dir := node.TempDir(c.t)
	n := node.Start(c.t, node.Options{
		Dir: dir, NetNS: host.NetNS, ServiceManager: true,
		Args: []string{"--set", "containerd.link=" + dir + "/link", "--set", "network.use_default=false"},
	})
	m := &member{Node: n, c: c, name: name, host: host, dir: n.Dir + "/k", group: n.Cgroup + "-kubelet"}
	c.members = append(c.members, m)
	c.t.Cleanup(m.stop)
	for _, d := range []string{"/manifests", "/podlogs", "/root", "/plugins"} {
		m.check(os.MkdirAll(m.dir+d, 0o750))
	}
	for _, g := range node.Groups(m.group) {
		m.check(os.MkdirAll(g, 0o755))
	}
	c.ca.issue(name, "system:node:"+name, []string{"system:nodes"}, name, host.Address)
	c.ca.kubeconfig(name, c.lan.Hosts[0].Address)
	settings := []string{"@KUBELET@", m.dir, "@GROUP@", m.group, "@SOCKET@", n.Dir + "/berth.sock", "@NAME@", name, "@NODE@", n.Dir, "@BRIDGE@", n.Bridge, "@SUBNET@", n.Subnet, "@EVENTED@", strconv.FormatBool(c.evented)}
	m.check(os.WriteFile(m.dir+"/config.yaml", []byte(c.text("kubelet", settings...)), 0o600))
	m.check(os.WriteFile(m.dir+"/resolv.conf", nil, 0o644))
	m.check(os.MkdirAll(n.Dir+"/net.d", 0o755))
	m.check(os.WriteFile(n.Dir+"/net.d/10-cluster.conflist.new", []byte(c.text("network", settings...)), 0o600))
	m.check(os.Rename(n.Dir+"/net.d/10-cluster.conflist.new", n.Dir+"/net.d/10-cluster.conflist"))
	if i == 0 {
		for _, program := range ofControl {
			m.check(os.WriteFile(m.dir+"/manifests/"+program+".yaml", []byte(c.text("control/"+program)), 0o600))
		}
	}
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
		if out, err := exec.Command("nsenter", "--net="+m.host.NetNS, "sh", "-ec", script).CombinedOutput(); err != nil {
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
			if _, err := m.Import(context.Background(), archives[program], ""); err != nil {
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
	m.kubelet = m.Spawn("nsenter", "--net="+m.host.NetNS, m.Module+"/build/bin/kubelet", "--config", m.dir+"/config.yaml", "--kubeconfig", m.c.ca.dir+"/"+m.name+".conf",
		"--root-dir", m.dir+"/root", "--cert-dir", m.dir+"/certs", "--hostname-override", m.name, "--node-ip", m.host.Address, "--containerd", m.Node.Dir+"/link", "--v", "2")
}

// stop ends the kubelet and takes away what it has made. The pods go with the node.
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
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(m.dir))
	m.note(err)
	for _, i := range slices.Backward(infos) {
		m.note(syscall.Unmount(i.Mountpoint, syscall.MNT_DETACH))
	}
	for _, g := range node.Groups(m.group) {
		node.RemoveGroup(g)
	}
	// The kubelet makes these outside of its directory, and leaves them to its next garbage collection.
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, m.dir+"/") {
			m.note(os.Remove(l))
		}
	}
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
