// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"path/filepath"

	"berth/internal/base/event"
	"berth/internal/history/observe"
	"berth/internal/host/cgroup"
	"berth/internal/host/network"
)

// openNetwork opens the network of pods.
func openNetwork(b base, owner string) (*network.Network, error) {
	n := b.cfg.Network
	var def *network.Bridge
	if n.UseDefault {
		def = &network.Bridge{Name: n.DefaultBridge, Subnet: n.DefaultSubnet, DataDir: filepath.Join(b.cfg.Root, "ipam")}
	}
	var groups network.Groups // a nil *cgroup.Groups would not be a nil interface
	if g, err := cgroup.NewGroups("cni-"+owner, network.Grace); err != nil {
		b.log.Warn("CNI plug-ins run without cgroups of their own: what a call leaves that is cut off is not ended", "err", err)
	} else {
		groups = pluginGroups{g}
	}
	return network.New(network.Config{
		ConfDir:  n.ConfDir,
		Name:     n.Name,
		Prefer:   n.Prefer,
		BinDirs:  append(append([]string(nil), n.BinDirs...), cniDirs(b.libexec)...),
		CacheDir: filepath.Join(b.cfg.Root, "cni"),
		Default:  def,
		Handlers: handlerNetworks(b.cfg.Runtimes),
		Groups:   groups,
		Logger:   b.log.Logger,
		Ops:      b.ops,
	})
}

// pluginGroups plugs the groups of package cgroup into the network.
type pluginGroups struct{ *cgroup.Groups }

func (g pluginGroups) New(id string) (network.Group, error) { return g.Groups.New(id) }

// networkNotes plugs the observer into the network.
type networkNotes struct{ obs *observe.Observer }

// HostPortsRestored notes an event of a pod.
func (n networkNotes) HostPortsRestored(podID string) { n.obs.Note(podID, event.HostPortsRestored{}) }

// HostPortsLost notes an event of a pod.
func (n networkNotes) HostPortsLost(podID string, err error) {
	n.obs.Note(podID, event.HostPortsLost{Err: err.Error()})
}
