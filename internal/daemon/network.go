// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"path/filepath"

	"berth/internal/host/cgroup"
	"berth/internal/host/network"
	"berth/internal/host/pins"
)

// openNetwork makes what connects pods, and what keeps their network namespaces.
func (d *daemon) openNetwork() error {
	n := d.cfg.Network
	var def *network.Bridge
	if n.UseDefault {
		def = &network.Bridge{Name: n.DefaultBridge, Subnet: n.DefaultSubnet, DataDir: filepath.Join(d.cfg.Root, "ipam")}
	}
	var groups network.Groups // a nil *cgroup.Groups would not be a nil interface
	if g, err := cgroup.NewGroups("cni-"+d.store.Owner(), network.Grace); err != nil {
		d.log.Warn("CNI plug-ins run without cgroups of their own: what a call leaves that is cut off is not ended", "err", err)
	} else {
		groups = pluginGroups{g}
	}
	var err error
	if d.netns, err = pins.NewNetworks(n.NetNSDir, d.store.Owner()); err != nil {
		return err
	}
	d.network, err = network.New(network.Config{
		ConfDir:  n.ConfDir,
		BinDirs:  append(append([]string(nil), n.BinDirs...), cniDirs(d.libexec)...),
		CacheDir: filepath.Join(d.cfg.Root, "cni"),
		Default:  def,
		Handlers: handlerNetworks(d.cfg.Runtimes),
		Groups:   groups,
		Logger:   d.log.Logger,
	})
	return err
}

// pluginGroups plugs the groups of package cgroup into the network.
type pluginGroups struct{ *cgroup.Groups }

func (g pluginGroups) New(id string) (network.Group, error) { return g.Groups.New(id) }
