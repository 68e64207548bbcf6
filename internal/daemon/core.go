// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/ops"
	"berth/internal/engine/ctrd"
	"berth/internal/heart/feed"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/history/observe"
	"berth/internal/history/recorder"
	"berth/internal/serve/cri"
)

// Core is berth without what it works on: the controller, the feed, the recorder, and what joins
// them with containerd's events. Serve puts it between a real containerd, kernel and network; the
// simulation between fakes.
type Core struct {
	Pods     *pod.Controller
	Feed     *feed.Feed
	Recorder *recorder.Recorder
	Ops      *ops.List

	ports    Ports
	clock    *clock.Clock
	obs      *observe.Observer
	link     *link
	restored chan struct{} // closed once the records are restored
}

// Ports is what a core works on.
type Ports struct {
	// Ports of the controller. Feed and the observers are the core's own.
	pod.Ports
	// Load reads the records, once, before anything else. An error ends the core.
	Load func() (state.Loaded, error)
	// Loaded is called with the records before they are restored, to tell the names of what they
	// are of. It may be nil.
	Loaded func(all state.Loaded, named func(id string, of event.Names))
	// Restored is called once everything that runs is watched again. It may be nil.
	Restored func()
	// Removed is called with the ID of what has no record any more. It must not block, and may be
	// nil.
	Removed func(id string)
	// Happened is called with the ID of what something happened to. It must not block, and may be
	// nil.
	Happened func(id string)
	// Sweep is called on each connection, to give back what a kill left with containerd that no pod
	// has. It may be nil.
	Sweep func(ctx context.Context) error
	// Follow keeps a subscription to containerd's events until ctx ends.
	Follow func(ctx context.Context, l ctrd.Listener) error
	// Meets is called with the UUID of a containerd that has answered, and with how many sandboxes
	// and containers are on record. An error says that it is not the one which has them: nothing is
	// compared with it. It may be nil.
	Meets func(uuid string, units int) error
	// link is the state of the connection to containerd; nil makes one.
	link *link
	// ImageChanged is called with each image event of containerd; RefreshImages reads all images
	// again.
	ImageChanged  func(name string)
	RefreshImages func(ctx context.Context) error
	// Recorder may be nil: what happens is remembered in memory alone.
	Recorder *recorder.Recorder
	// Metrics may be nil.
	Metrics *observe.Metrics
	// Tracing may be nil: nothing is traced.
	Tracing *observe.Tracing
	Log     *slog.Logger
	// Panicked is called in a goroutine of the core that panicked, and ends the process. It may be
	// nil; then the Go runtime does.
	Panicked func(where string, p any)
}

// NewCore makes a core. Nothing runs before Run.
func NewCore(cfg pod.Config, p Ports) *Core {
	if p.Metrics == nil {
		p.Metrics = observe.NewMetrics()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.New(nil)
	}
	if p.Recorder == nil {
		p.Recorder = recorder.Open(recorder.Config{Clock: cfg.Clock})
	}
	if p.Ports.Ops == nil {
		p.Ports.Ops = &ops.List{}
	}
	c := &Core{
		Feed:     feed.New(feed.Config{}),
		Recorder: p.Recorder,
		Ops:      p.Ports.Ops,
		ports:    p,
		clock:    cfg.Clock,
		link:     cmp.Or(p.link, newLink()),
		restored: make(chan struct{}),
	}
	c.obs = observe.New(observe.Config{
		Clock:    cfg.Clock,
		Log:      p.Log,
		Recorder: p.Recorder,
		Metrics:  p.Metrics,
		Tracing:  p.Tracing,
		Removed:  p.Removed,
		Happened: p.Happened,
	})
	out := p.Ports
	out.Feed, out.Observer, out.LaneObserver = c.Feed, c.obs, c.obs
	c.Pods = pod.New(cfg, out)
	c.Ops.Connect(ops.Config{
		Names: (&asked{c.Pods}).names,
		Steps: c.Pods.Steps,
		Note:  c.obs.Note,
		Ended: p.Metrics.Ended,
		Span:  p.Tracing.Span(),
	})
	return c
}

// Run restores the records, follows containerd and drives the controller until ctx ends. Comparing
// the records with what containerd has goes on in the background, whenever there is one.
func (c *Core) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	g := &group{eg, c.ports.Panicked}
	g.Go("clock", func() error {
		c.clock.Run(ctx, func(s clock.Step) {
			c.obs.Note("", event.ClockSet{From: s.From, To: s.To, Away: s.Away})
		}, func(err error) {
			c.ports.Log.Warn("the clock is looked at every second, or its file is not written", "err", err)
		})
		return nil
	})
	g.Go("pods", func() error { return c.Pods.Run(ctx) })
	g.Go("records and containerd's events", func() error {
		loaded, err := c.ports.Load()
		if err != nil {
			return fmt.Errorf("load the records: %w", err)
		}
		if c.ports.Loaded != nil {
			c.ports.Loaded(loaded, c.obs.Named)
		}
		c.Pods.Restore(loaded)
		if c.ports.Restored != nil {
			c.ports.Restored()
		}
		close(c.restored)
		return c.ports.Follow(ctx, c.listener())
	})
	return g.Wait()
}

// Restored returns a channel that is closed once the records are restored, which needs no
// containerd. Only then may calls be served.
func (c *Core) Restored() <-chan struct{} { return c.restored }

// Subscribe begins a subscription to container events.
func (c *Core) Subscribe() cri.Events { return c.Feed.Subscribe() }

// refreshTimeout bounds the reading of all images after a connection.
const refreshTimeout = 2 * time.Minute

// listener connects containerd's events with those that want them. Each connection compares the
// records with what containerd has.
func (c *Core) listener() ctrd.Listener {
	return ctrd.Listener{
		Exited: c.Pods.Exited,
		OOM:    c.Pods.OOMKilled,
		Image:  c.ports.ImageChanged,
		Lost:   func(err error) { c.obs.Lost(err, c.link.set(err)) },
		Answered: func(uuid string) error {
			if c.ports.Meets == nil {
				return nil
			}
			return c.ports.Meets(uuid, c.Pods.Units())
		},
		Connected: func(ctx context.Context) error {
			// Images are read beside the comparison: creations wait for them, and not for that.
			read := make(chan error, 1)
			go func() { read <- c.readImages(ctx) }()
			if err := errors.Join(c.Pods.Relist(ctx), <-read); err != nil {
				return err
			}
			if c.ports.Sweep != nil {
				if err := c.ports.Sweep(ctx); err != nil {
					c.ports.Log.Warn("what a kill left with containerd could not be removed", "err", err)
				}
			}
			return nil
		},
	}
}

// readImages reads all images. From then on pods can be made.
func (c *Core) readImages(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	if err := c.ports.RefreshImages(ctx); err != nil {
		return err
	}
	if c.link.set(nil) {
		c.obs.Note("", event.ContainerdConnected{})
	}
	return nil
}
