// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	"berth/internal/base/lane"
	"berth/internal/base/ops"
	"berth/internal/base/processors"
	"berth/internal/base/retry"
	"berth/internal/heart/state"
)

// Ports is everything that the controller works on. All fields are required, except for those whose
// comment allows nil.
type Ports struct {
	Runtime Runtime
	Kernel  Kernel
	Cgroups Cgroups
	Network Network
	NetNS   NetNS
	Files   Files
	Pins    Pins
	Stdios  Stdios
	Images  Images
	Policy  Policy // nil: every image is allowed
	Store   Store
	Feed    Feed
	// Labels may be nil: the host does not have SELinux.
	Labels Labels
	// UserNamespaces returns nil if a handler can give pods a user namespace of their own: its
	// runtime, its snapshotter and the kernel map owners. Otherwise the error names the missing
	// part. It may be nil: no handler can.
	UserNamespaces func(ctx context.Context, handler string) error
	// SandboxShim reports whether the shim of a handler can serve a pod without a process. It may
	// be nil: none can, and each sandbox has a pause process.
	SandboxShim func(ctx context.Context, handler string) bool
	// Profiles reads a seccomp profile that was pulled from a registry, by its reference. It may be
	// nil: none was.
	Profiles func(ref string) ([]byte, error)
	// Checkpoints may be nil: a container that is to be restored from one is refused then.
	Checkpoints Checkpoints
	// Devices may be nil: a container that asks for CDI devices is refused then.
	Devices Devices
	// Hooks may be nil: nothing takes part then.
	Hooks Hooks
	// Ops lists what is under way; nil: a list that the controller alone knows.
	Ops *ops.List
	// Observer and LaneObserver may be nil.
	Observer     Observer
	LaneObserver lane.Observer[LaneKey]
	// Turn is called by each attempt of a lane as it begins and as it ends, and may be nil. It may
	// take any time: the simulation decides there which of several comes first.
	Turn func(what string)
}

// New makes a controller without any unit. Call Restore, run Run, and call Relist on each
// connection to containerd.
func New(cfg Config, p Ports) *Controller {
	cfg.defaults()
	if p.Observer == nil {
		p.Observer = noObserver{}
	}
	if p.Ops == nil {
		p.Ops = &ops.List{}
	}
	p = p.listed()
	// The lanes call the controller, and through it the parts that work on units: after New has
	// returned, when all of them are complete.
	c := new(Controller)
	pacer := lane.NewPacer(processors.Count())
	newUnits := units{p.Runtime, p.Pins, p.Store, cfg.Clock}
	units := newRegistry()
	work := newOperations(cfg.CreateTimeout, p.Ops)
	names := newInflight(work, cfg.NewID)
	lanes := newLanes(cfg, inTurn(p.Turn, c.attempt), func() { c.auditor.relistAwaited() }, p.LaneObserver)
	oomReader := &oomReader{p.Kernel, p.Cgroups, p.Observer}
	processes := &processes{p.Kernel, p.Cgroups, oomReader, p.Observer, cfg.Host}
	output := &output{p.Stdios, p.Files, p.Kernel, work, cfg.MaxLogLine, p.Observer}
	userns := &userNamespaces{p.NetNS, p.UserNamespaces}
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
		units:   units,
		labels:  p.Labels,
		obs:     p.Observer,
		pulled:  p.Profiles,
	}
	statuses := &statuses{p.Images, cfg.Clock}
	describer := &describer{p.Runtime}
	publisher := &publisher{p.Feed, statuses, units}
	updater := &updater{
		host:    cfg.Host,
		objects: p.Runtime,
		tasks:   p.Runtime,
		lanes:   lanes,
		ops:     work,
		obs:     p.Observer,
		waiting: map[string][]*updateWaiter{},
		last:    map[string]error{},
	}
	ooms := &oomWatcher{units, oomReader, work, p.Observer}
	witnesses := &witnesses{
		units:     units,
		processes: processes,
		ooms:      ooms,
		lanes:     lanes,
		pacer:     pacer,
		ops:       work,
		obs:       p.Observer,
	}
	endings := &endings{
		hooks: p.Hooks,
		lanes: lanes,
		obs:   p.Observer,
		units: map[string]*unit{},
	}
	settler := &settler{
		processes: processes,
		ooms:      oomReader,
		givenUp:   &givenUp{processes},
		shims:     p.Runtime,
		lanes:     lanes,
		pacer:     pacer,
		ops:       work,
		publisher: publisher,
		endings:   endings,
		obs:       p.Observer,
	}
	damaged := &damaged{clock: cfg.Clock, obs: p.Observer, byID: map[string]state.Damaged{}}
	orphans := &orphans{
		runtime: p.Runtime,
		network: p.Network,
		netns:   p.NetNS,
		files:   p.Files,
		pins:    p.Pins,
		stdios:  p.Stdios,
		store:   p.Store,
		units:   units,
		damaged: damaged,
		lanes:   lanes,
		obs:     p.Observer,
		byID:    map[string]orphan{},
	}
	teardown := &teardown{
		undoTimeout: cfg.UndoTimeout,
		objects:     p.Runtime,
		layers:      p.Runtime,
		tasks:       p.Runtime,
		shims:       p.Runtime,
		gap:         gap{p.Runtime},
		network:     p.Network,
		netns:       p.NetNS,
		files:       p.Files,
		pins:        p.Pins,
		volumes:     volumes,
		processes:   processes,
		output:      output,
		settler:     settler,
		units:       units,
		orphans:     orphans,
		names:       names,
		lanes:       lanes,
		pacer:       pacer,
		labels:      p.Labels,
		publisher:   publisher,
		obs:         p.Observer,
	}
	detours := elsewhere{
		updater:  updater,
		reviver:  &reviver{shims: p.Runtime, undoTimeout: teardown.undoTimeout, obs: p.Observer},
		teardown: teardown,
	}
	taskMaker := &taskMaker{
		layers:  p.Runtime,
		tasks:   p.Runtime,
		files:   p.Files,
		output:  output,
		detours: detours,
		obs:     p.Observer,
	}
	sandboxes := &sandboxMaker{
		host:       cfg.Host,
		resolvConf: cfg.ResolvConf,
		objects:    p.Runtime,
		shims:      p.Runtime,
		network:    p.Network,
		netns:      p.NetNS,
		files:      p.Files,
		store:      p.Store,
		hooks:      p.Hooks,
		make:       newUnits,
		units:      units,
		processes:  processes,
		pauses:     pauses,
		userns:     userns,
		witnesses:  witnesses,
		teardown:   teardown,
		publisher:  publisher,
		labels:     p.Labels,
		profiles:   specs.profiles,
		obs:        p.Observer,
	}
	creator := &creator{
		objects:     p.Runtime,
		layers:      p.Runtime,
		images:      p.Images,
		policy:      p.Policy,
		checkpoints: p.Checkpoints,
		files:       p.Files,
		store:       p.Store,
		devices:     p.Devices,
		hooks:       p.Hooks,
		make:        newUnits,
		units:       units,
		specs:       specs,
		userns:      userns,
		volumes:     volumes,
		teardown:    teardown,
		publisher:   publisher,
		obs:         p.Observer,
	}
	ready := &readiness{objects: p.Runtime, units: units, hooks: p.Hooks, processes: processes}
	starter := &starter{
		hooks:     p.Hooks,
		ops:       work,
		lanes:     lanes,
		processes: processes,
		detours:   detours,
		launcher: &launcher{
			tasks:     p.Runtime,
			processes: processes,
			witnesses: witnesses,
			taskMaker: taskMaker,
			ready:     ready,
			obs:       p.Observer,
		},
		restorer: &restorer{
			objects:   p.Runtime,
			tasks:     p.Runtime,
			files:     p.Files,
			processes: processes,
			witnesses: witnesses,
			taskMaker: taskMaker,
			ready:     ready,
			obs:       p.Observer,
		},
		publisher: publisher,
		obs:       p.Observer,
	}
	stopper := &stopper{
		ops:         work,
		grace:       cfg.StartGrace,
		networkWait: cfg.NetworkWait,
		processes:   processes,
		witnesses:   witnesses,
		lanes:       lanes,
		orphans:     orphans,
		obs:         p.Observer,
	}
	remover := &remover{stopper, orphans, lanes, p.Observer}
	recovery := &recovery{
		cfg:       cfg,
		make:      newUnits,
		runtime:   p.Runtime,
		network:   p.Network,
		units:     units,
		names:     names,
		processes: processes,
		witnesses: witnesses,
		ooms:      ooms,
		output:    output,
		lanes:     lanes,
		publisher: publisher,
		orphans:   orphans,
		damaged:   damaged,
		labels:    p.Labels,
		obs:       p.Observer,
		restored:  make(chan struct{}),
	}
	auditor := &auditor{
		cfg:       cfg,
		units:     units,
		processes: processes,
		witnesses: witnesses,
		ooms:      ooms,
		output:    output,
		stopper:   stopper,
		lanes:     lanes,
		recovery:  recovery,
		ops:       work,
		obs:       p.Observer,
		asking:    map[string]bool{},
		soon:      retry.NewWake(),
	}
	*c = Controller{
		cfg:  cfg,
		feed: p.Feed,
		obs:  p.Observer,

		units:     units,
		names:     names,
		ops:       work,
		lanes:     lanes,
		output:    output,
		statuses:  statuses,
		describer: describer,
		sandboxes: sandboxes,
		creator:   creator,
		starter:   starter,
		updater:   updater,
		witnesses: witnesses,
		settler:   settler,
		endings:   endings,
		teardown:  teardown,
		stopper:   stopper,
		remover:   remover,
		damaged:   damaged,
		orphans:   orphans,
		recovery:  recovery,
		auditor:   auditor,
	}
	return c
}
