// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/exit"
	"berth/internal/lane"
	"berth/internal/state"
)

// Controller holds every sandbox and container. What people ask for are its methods; what happens
// by itself is the work of the types that it puts together. Its methods may be called from any
// goroutine once Restore has returned; Run must be running.
type Controller struct {
	cfg  Config
	feed Feed
	obs  Observer

	units     *registry
	names     *inflight
	ops       *operations
	lanes     *lanes
	output    *output
	statuses  *statuses
	describer *describer
	sandboxes *sandboxMaker
	creator   *creator
	starter   *starter
	updater   *updater
	witnesses *witnesses
	settler   *settler
	endings   *endings
	teardown  *teardown
	stopper   *stopper
	remover   *remover
	damaged   *damaged
	orphans   *orphans
	recovery  *recovery
	auditor   *auditor
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

// Run drives the lanes and the audit until ctx ends, then ends the operations in flight and waits
// for them. The processes of pods go on.
func (c *Controller) Run(ctx context.Context) error {
	// The lanes end last: the operations in flight wait for them, and an exit that is reported
	// meanwhile is recorded.
	lanes, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.lanes.runner.Run(lanes) })
	g.Go(func() error {
		c.auditor.run(ctx)
		c.ops.close()
		end()
		return nil
	})
	return g.Wait()
}

// attempt makes one attempt of a lane.
func (c *Controller) attempt(ctx context.Context, a lane.Attempt[LaneKey, Step]) lane.Result {
	err := c.step(ctx, a)
	switch {
	case err == nil:
		return lane.Done()
	case ctx.Err() != nil && c.ops.stopping():
		return lane.Retry(err) // berth stops, and whoever starts it again goes on
	}
	switch {
	case errors.Is(err, errMembers): // as it often is, and nothing is wrong
		c.obs.Event(a.Key.ID, string(a.Item)+" waits for the removal of the pod's containers", nil, "attempt", a.N)
	case errors.Is(err, errTurn): // likewise
		c.obs.Event(a.Key.ID, string(a.Item)+" waits for those of containers that ended earlier", nil, "attempt", a.N)
	default:
		c.obs.Event(a.Key.ID, string(a.Item)+" attempt ended with an error", err, "attempt", a.N)
	}
	if a.Item == StepSettle {
		return lane.RetryWithin(err, c.cfg.SettleRetry)
	}
	return lane.Retry(err)
}

func (c *Controller) step(ctx context.Context, a lane.Attempt[LaneKey, Step]) error {
	switch a.Item { // these do not need a unit on record
	case StepReap:
		return c.orphans.reap(ctx, a.Key.ID)
	case StepNotify:
		return c.endings.attempt(ctx, a.Key.ID)
	}
	u, ok := c.units.get(a.Key.ID)
	if !ok {
		c.teardown.pacer.forget(a.Key.ID)
		return nil
	}
	switch a.Item {
	case StepUndoStart:
		return c.teardown.undoStart(ctx, u)
	case StepSettle:
		return c.settler.settle(ctx, u)
	case StepRelease:
		return c.teardown.release(ctx, u, a.N == 1)
	case StepUpdate:
		return c.updater.apply(ctx, u)
	}
	return nil
}

// Exited takes a fact of a witness. It never blocks.
func (c *Controller) Exited(f exit.Fact) { c.witnesses.report(f) }

// OOMKilled takes containerd's report that the OOM killer fired in a container.
func (c *Controller) OOMKilled(id string) { c.witnesses.reportOOM(id) }

// OOMNoted takes IDs of containers in whose cgroups the OOM killer may have fired, as the kernel
// notifies of. It does not block.
func (c *Controller) OOMNoted(ids []string) { c.witnesses.ooms.noted(ids) }

// Restore takes the records that were loaded. Call it once, before any call is served. Damaged
// records are left alone, and what belongs to them too.
func (c *Controller) Restore(loaded state.Loaded) { c.recovery.restore(loaded) }

// Relist compares every unit with what containerd has: after each new connection to it, events may
// have been lost.
func (c *Controller) Relist(ctx context.Context) error {
	soon, err := c.recovery.relist(ctx)
	if soon {
		c.auditor.relistSoon()
	}
	return err
}

// Audit compares once with the kernel and, where that does not know, with containerd.
func (c *Controller) Audit() { c.auditor.audit() }

// Lanes shows the lanes that are not idle.
func (c *Controller) Lanes() []lane.Lane { return c.lanes.runner.Snapshot() }

// Oldest is the age of the oldest exit that waits for a step: reported and not settled, or settled
// and not released. 0: none does.
func (c *Controller) Oldest(step Step) time.Duration { return c.auditor.oldest(step) }
