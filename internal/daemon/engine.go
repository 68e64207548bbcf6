// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"path/filepath"
	"strings"

	"berth/internal/engine/ctrd"
	"berth/internal/engine/layers"
	"berth/internal/engine/probe"
	"berth/internal/engine/shims"
	"berth/internal/host/cgroup"
	"berth/internal/host/pidfd"
)

// engine is the adapter of containerd, the shims of this node, and what runtime handlers can do.
type engine struct {
	known *knownContainerd
	shims *shims.Shims
	ctrd  *ctrd.Containerd
	execs *ctrd.Execs
	probe *probe.Probe
}

// openEngine makes the adapter of tasks and objects on the connection, with the shims.
func openEngine(c *containerd, h host, im images, owner string) (engine, error) {
	e := engine{known: &knownContainerd{root: c.cfg.Root, log: c.log.Logger}}
	node := shims.Config{
		StateDir: filepath.Dir(strings.TrimPrefix(c.cfg.Containerd.Address, "unix://")), // unless it is configured otherwise
		Learned:  e.known.noteStateDir,
		Inside:   c.embeds(),
		Logger:   c.log.Logger,
	}
	if c.embeds() {
		node.StateDir = c.embedConfig().State
	}
	switch apart, err := cgroup.OpenApart(); {
	case err != nil:
		return e, err
	case apart != nil:
		node.Apart = apart
	}
	e.shims = shims.New(node)
	adapter := ctrd.Config{
		Owner:          owner,
		Clock:          c.clock,
		Snapshotter:    c.cfg.Containerd.Snapshotter,
		Snapshotters:   handlerSnapshotters(c.cfg.Runtimes),
		UnsyncedLayers: !c.cfg.Containerd.SyncLayers,
		Trust:          im.stored.Trust,
		Measured:       im.stored.Measured,
		StateDir:       c.cfg.State,
		Runs: func(id string) bool {
			answer, watched := h.kernel.Look(id)
			return watched && answer == pidfd.Alive
		},
		Shims: e.shims,
		ShimStarts: func(handler string) string {
			if !c.cfg.Runtimes[handler].ShimStarts() {
				return ""
			}
			return e.probe.ShimStarts(handler)
		},
		Logger: c.log.Logger,
	}
	if c.cfg.Tricks.CleanupScript {
		adapter.Cleanups = shims.NewCleanups(e.shims, filepath.Join(c.cfg.Root, "cleanup"), c.log.Logger)
	}
	if c.embeds() {
		adapter.SetAside = c.setAside
	}
	e.ctrd = ctrd.New(c.conn, adapter)
	e.execs = ctrd.NewExecs(e.ctrd)
	e.probe = probe.New(probe.Config{
		Handlers:          h.handlers,
		Snapshotter:       c.cfg.Containerd.Snapshotter,
		RecursiveReadOnly: h.RecursiveReadOnly,
		MapsOwners: func(ctx context.Context, snapshotter string) (bool, error) {
			return layers.MapsOwners(ctx, c.conn, snapshotter)
		},
		SandboxShim: e.ctrd.SandboxShim,
		Logger:      c.log.Logger,
	})
	return e, nil
}

// meets decides whether berth works with the containerd that has this UUID, tells the shims where
// it has its bundles, and has it asked again whatever the last one has answered.
func (e engine) meets(uuid string, units int) error {
	dir, err := e.known.meets(uuid, units)
	if err == nil {
		e.shims.Learn(dir)
		e.probe.Reconnected()
	}
	return err
}
