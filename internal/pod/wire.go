// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	"berth/internal/lane"
	"berth/internal/state"
)

// Ports is everything that the controller works on. All fields are required, except where a
// comment says otherwise.
type Ports struct {
	Runtime Runtime
	Kernel  Kernel
	Cgroups Cgroups
	Network Network
	Files   Files
	Pins    Pins
	Stdios  Stdios
	Images  Images
	Store   Store
	Feed    Feed
	// Labels may be nil: the host does not have SELinux.
	Labels Labels
	// UserNamespaces returns nil if a handler can give pods a user namespace of their own: its
	// runtime, its snapshotter and the kernel map owners. Otherwise the error says what is missing.
	// It may be nil: no handler can.
	UserNamespaces func(ctx context.Context, handler string) error
	// SandboxShim reports whether the shim of a handler can serve a pod without a process. It may
	// be nil: none can, and each sandbox has a pause process.
	SandboxShim func(ctx context.Context, handler string) bool
	// Checkpoints may be nil: a container that is to be restored from one is refused then.
	Checkpoints Checkpoints
	// Devices may be nil: a container that asks for CDI devices is refused then.
	Devices Devices
	// Hooks may be nil: nothing takes part then.
	Hooks Hooks
	// Observer and LaneObserver may be nil.
	Observer     Observer
	LaneObserver lane.Observer[LaneKey]
}

// New makes a controller without any unit. Call Restore, run Run, and call Relist on each
// connection to containerd.
func New(cfg Config, p Ports) *Controller {
	cfg.defaults()
	if p.Observer == nil {
		p.Observer = noObserver{}
	}
	c := &Controller{
		cfg:  cfg,
		feed: p.Feed,
		obs:  p.Observer,
	}
	pacer := newPacer()
	newUnits := units{p.Runtime, p.Pins, p.Store}
	c.units = newRegistry()
	c.ops = newOperations(cfg.CreateTimeout)
	c.names = newInflight(c.ops, cfg.NewID)
	c.lanes = newLanes(cfg, c.attempt, p.LaneObserver)
	processes := &processes{p.Kernel, p.Cgroups, p.Observer}
	c.output = &output{p.Stdios, p.Files, c.ops, cfg.MaxLogLine, cfg.DrainTimeout, p.Observer}
	userns := &userNamespaces{p.Network, p.UserNamespaces}
	volumes := &imageVolumes{p.Runtime, p.Images, p.Files, p.Labels}
	pauses := &pauses{
		volumes: volumes,
		builtin: cfg.PauseRootfs,
		always:  cfg.AlwaysPause,
		shim:    p.SandboxShim,
	}
	specs := &specBuilder{
		host:    cfg.Host,
		images:  p.Images,
		files:   p.Files,
		pins:    p.Pins,
		volumes: volumes,
		units:   c.units,
		labels:  p.Labels,
		obs:     p.Observer,
	}
	c.statuses = &statuses{p.Images}
	c.describer = &describer{p.Runtime}
	publisher := &publisher{p.Feed, c.statuses, c.units}
	c.updater = &updater{
		host:    cfg.Host,
		runtime: p.Runtime,
		lanes:   c.lanes,
		ops:     c.ops,
		obs:     p.Observer,
		waiting: map[string][]*updateWaiter{},
		last:    map[string]error{},
	}
	ooms := &oomWatcher{c.units, processes, c.ops, p.Observer}
	c.witnesses = &witnesses{
		units:     c.units,
		processes: processes,
		ooms:      ooms,
		lanes:     c.lanes,
		pacer:     pacer,
		ops:       c.ops,
		obs:       p.Observer,
	}
	c.endings = &endings{
		hooks: p.Hooks,
		lanes: c.lanes,
		obs:   p.Observer,
		units: map[string]*unit{},
	}
	c.settler = &settler{
		cfg:       cfg,
		processes: processes,
		lanes:     c.lanes,
		pacer:     pacer,
		ops:       c.ops,
		publisher: publisher,
		endings:   c.endings,
		obs:       p.Observer,
	}
	c.teardown = &teardown{
		undoTimeout: cfg.UndoTimeout,
		runtime:     p.Runtime,
		network:     p.Network,
		files:       p.Files,
		pins:        p.Pins,
		volumes:     volumes,
		processes:   processes,
		output:      c.output,
		settler:     c.settler,
		units:       c.units,
		names:       c.names,
		lanes:       c.lanes,
		pacer:       pacer,
		labels:      p.Labels,
		publisher:   publisher,
		obs:         p.Observer,
	}
	taskMaker := &taskMaker{
		runtime:  p.Runtime,
		files:    p.Files,
		output:   c.output,
		teardown: c.teardown,
		obs:      p.Observer,
	}
	c.sandboxes = &sandboxMaker{
		host:       cfg.Host,
		resolvConf: cfg.ResolvConf,
		runtime:    p.Runtime,
		network:    p.Network,
		files:      p.Files,
		store:      p.Store,
		hooks:      p.Hooks,
		make:       newUnits,
		units:      c.units,
		processes:  processes,
		pauses:     pauses,
		userns:     userns,
		witnesses:  c.witnesses,
		teardown:   c.teardown,
		publisher:  publisher,
		labels:     p.Labels,
		obs:        p.Observer,
	}
	c.creator = &creator{
		runtime:     p.Runtime,
		images:      p.Images,
		checkpoints: p.Checkpoints,
		files:       p.Files,
		store:       p.Store,
		devices:     p.Devices,
		hooks:       p.Hooks,
		make:        newUnits,
		units:       c.units,
		specs:       specs,
		volumes:     volumes,
		teardown:    c.teardown,
		publisher:   publisher,
		obs:         p.Observer,
	}
	c.starter = &starter{
		runtime:   p.Runtime,
		units:     c.units,
		files:     p.Files,
		hooks:     p.Hooks,
		ops:       c.ops,
		lanes:     c.lanes,
		processes: processes,
		witnesses: c.witnesses,
		updater:   c.updater,
		taskMaker: taskMaker,
		publisher: publisher,
		obs:       p.Observer,
	}
	c.damaged = &damaged{obs: p.Observer, byID: map[string]state.Damaged{}}
	c.orphans = &orphans{
		runtime: p.Runtime,
		network: p.Network,
		files:   p.Files,
		pins:    p.Pins,
		stdios:  p.Stdios,
		store:   p.Store,
		units:   c.units,
		damaged: c.damaged,
		lanes:   c.lanes,
		obs:     p.Observer,
		byID:    map[string]orphan{},
	}
	c.stopper = &stopper{
		grace:       cfg.StartGrace,
		networkWait: cfg.NetworkWait,
		processes:   processes,
		witnesses:   c.witnesses,
		lanes:       c.lanes,
		orphans:     c.orphans,
		obs:         p.Observer,
	}
	c.remover = &remover{c.stopper, c.orphans, c.lanes}
	c.recovery = &recovery{
		cfg:       cfg,
		make:      newUnits,
		runtime:   p.Runtime,
		units:     c.units,
		names:     c.names,
		processes: processes,
		witnesses: c.witnesses,
		ooms:      ooms,
		output:    c.output,
		lanes:     c.lanes,
		publisher: publisher,
		orphans:   c.orphans,
		damaged:   c.damaged,
		labels:    p.Labels,
		obs:       p.Observer,
		restored:  make(chan struct{}),
	}
	c.auditor = &auditor{
		cfg:       cfg,
		units:     c.units,
		processes: processes,
		witnesses: c.witnesses,
		stopper:   c.stopper,
		lanes:     c.lanes,
		recovery:  c.recovery,
		ops:       c.ops,
		obs:       p.Observer,
		asking:    map[string]bool{},
		soon:      make(chan struct{}, 1),
	}
	c.lanes.relist = c.auditor.relistAwaited
	return c
}
