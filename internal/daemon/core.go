// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"berth/internal/cri"
	"berth/internal/ctrd"
	"berth/internal/feed"
	"berth/internal/pod"
	"berth/internal/state"
	"berth/internal/timeline"
)

// Core is berth without what it works on: the controller, the feed, the timeline, and what joins
// them with containerd's events. Serve puts it between a real containerd, kernel and network; the
// simulation between fakes.
type Core struct {
	Pods     *pod.Controller
	Feed     *feed.Feed
	Timeline *timeline.Timeline

	ports Ports
	obs   *observer
	link  link
}

// Ports is what a core works on.
type Ports struct {
	// Ports of the controller. Feed and the observers are the core's own.
	pod.Ports
	// Load reads the records, once, after the first connection to containerd.
	Load func() (state.Loaded, error)
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
	// ImageChanged is called with each image event of containerd; RefreshImages reads all images
	// again.
	ImageChanged  func(name string)
	RefreshImages func(ctx context.Context) error
	// Tracing is where traces go; nil for nowhere.
	Tracing trace.TracerProvider
	Log     *slog.Logger
	// Panicked is called in a goroutine of the core that panicked, and ends the process. It may be
	// nil; then the Go runtime does.
	Panicked func(where string, p any)
}

// NewCore makes a core. Nothing runs before Run.
func NewCore(cfg pod.Config, p Ports) *Core {
	c := &Core{Feed: feed.New(feed.Config{}), Timeline: timeline.New(), ports: p}
	out := p.Ports
	if p.Tracing == nil {
		p.Tracing = noop.NewTracerProvider()
	} else {
		tracer := p.Tracing.Tracer("berth")
		out.Runtime, out.Network, out.Store = tracedRuntime{out.Runtime, tracer}, tracedNetwork{out.Network, tracer}, tracedStore{out.Store, tracer}
	}
	c.obs = newObserver(p.Log, c.Timeline, newTrips(p.Tracing))
	c.obs.gone, c.obs.happened = p.Removed, p.Happened
	out.Feed, out.Observer, out.LaneObserver = c.Feed, c.obs, c.obs
	c.Pods = pod.New(cfg, out)
	return c
}

// Run follows containerd and drives the controller until ctx ends. restored is closed once the
// records are restored: only then may calls be served. Comparing them with what containerd has goes
// on in the background.
func (c *Core) Run(ctx context.Context, restored chan<- struct{}) error {
	eg, ctx := errgroup.WithContext(ctx)
	g := &group{eg, c.ports.Panicked}
	g.Go("pods", func() error { return c.Pods.Run(ctx) })
	g.Go("containerd's events", func() error { return c.ports.Follow(ctx, c.listener(restored)) })
	return g.Wait()
}

// Connected returns nil while berth is connected to containerd, and otherwise the reason why it is
// not.
func (c *Core) Connected() error { return c.link.get() }

// Subscribe begins a subscription to container events.
func (c *Core) Subscribe() cri.Events { return c.Feed.Subscribe() }

// listener connects containerd's events with those that want them. The first connection restores
// the records. Each one compares them with what containerd has.
func (c *Core) listener(restored chan<- struct{}) ctrd.Listener {
	first := true
	return ctrd.Listener{
		Exited: c.Pods.Exited,
		OOM:    c.Pods.OOMKilled,
		Image:  c.ports.ImageChanged,
		Lost: func(err error) {
			c.link.set(err)
			c.obs.lost(err)
		},
		Connected: func(ctx context.Context) error {
			if first {
				loaded, err := c.ports.Load()
				if err != nil {
					return err
				}
				c.Pods.Restore(loaded)
				first = false
				if c.ports.Restored != nil {
					c.ports.Restored()
				}
				c.link.set(nil)
				close(restored)
			}
			if err := errors.Join(c.Pods.Relist(ctx), c.ports.RefreshImages(ctx)); err != nil {
				return err
			}
			if c.ports.Sweep != nil {
				if err := c.ports.Sweep(ctx); err != nil {
					c.ports.Log.Warn("what a kill left with containerd could not be removed", "err", err)
				}
			}
			c.link.set(nil)
			return nil
		},
	}
}

// link is the state of the connection to containerd.
type link struct {
	sync.Mutex
	err error
}

func (l *link) set(err error) {
	l.Lock()
	defer l.Unlock()
	l.err = err
}

func (l *link) get() error {
	l.Lock()
	defer l.Unlock()
	return l.err
}
