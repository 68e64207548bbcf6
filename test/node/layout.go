// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"syscall"
)

// Outside stops berth and its containerd, and starts berth beside a containerd of its own process.
// That one has the directories of the containerd inside berth if same is set, and others if not. It
// does not wait until berth is connected to it.
func (n *Node) Outside(same bool) {
	n.t.Helper()
	n.Berth.Kill(syscall.SIGTERM)
	n.external, n.containerdRoot = n.Dir+"/c/containerd.sock", ""
	if same {
		n.external, n.containerdRoot = n.Dir+"/run/containerd/containerd.sock", n.Dir+"/lib/containerd"
	}
	n.args = append(slices.Clip(n.args), "--containerd", n.external)
	n.StartContainerd()
	n.ServeBerth()
}

// Inside undoes Outside.
func (n *Node) Inside() {
	n.t.Helper()
	n.Berth.Kill(syscall.SIGTERM)
	n.Containerd.Kill(syscall.SIGTERM)
	n.Containerd, n.external, n.args = nil, "", n.args[:len(n.args)-2]
	n.StartBerth()
}
