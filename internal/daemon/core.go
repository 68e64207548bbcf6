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

// Core is berth without its surroundings: the controller, the feed, the timeline, and what joins them with containerd's
// events. Serve puts it between a real containerd, kernel and network; the simulation between fakes.
type Core struct {
	Pods     *pod.Controller
	Feed     *feed.Feed
	Timeline *timeline.Timeline

	around Around
	obs    *observer
	link   link
}

// Around is what a core stands between.
type Around struct {
	// Outside of the controller. Feed and the observers are the core's own.
	pod.Outside
	// Load reads the records, once, after the first connection to containerd.
	Load func() (state.Loaded, error)
	// Recovered is called once everything that runs is watched again. It may be nil.
	Recovered func()
	// Sweep is called on each connection, to give back what a kill left with containerd that no pod has. It may be nil.
	Sweep func(ctx context.Context) error
	// Follow keeps a subscription to containerd's events until ctx ends.
	Follow func(ctx context.Context, l ctrd.Listener) error
	// ImageChanged is told of containerd's image events; RefreshImages looks all up again.
	ImageChanged  func(name string)
	RefreshImages func(ctx context.Context) error
	// Tracing is where traces go; nil for nowhere.
	Tracing trace.TracerProvider
	Log     *slog.Logger
	// Panicked is called in a goroutine of the core that panicked, and ends the process. It may be
	// nil; then the Go runtime does.
	Panicked func(where string, p any)
}

// NewCore puts a core together. Nothing runs yet.
func NewCore(cfg pod.Config, a Around) *Core {
	c := &Core{Feed: feed.New(feed.Config{}), Timeline: timeline.New(), around: a}
	out := a.Outside
	if a.Tracing == nil {
		a.Tracing = noop.NewTracerProvider()
	} else {
		out.Runtime, out.Network = tracedRuntime{out.Runtime, a.Tracing.Tracer("berth")}, tracedNetwork{out.Network, a.Tracing.Tracer("berth")}
	}
	c.obs = newObserver(a.Log, c.Timeline, newTrips(a.Tracing))
	out.Feed, out.Observer, out.LaneObserver = c.Feed, c.obs, c.obs
	c.Pods = pod.New(cfg, out)
	return c
}

// Run follows containerd and drives the controller until ctx ends. recovered is closed once records and outside
// were compared: only then may calls be served.
func (c *Core) Run(ctx context.Context, recovered chan<- struct{}) error {
	eg, ctx := errgroup.WithContext(ctx)
	g := &group{eg, c.around.Panicked}
	g.Go("pods", func() error { return c.Pods.Run(ctx) })
	g.Go("containerd's events", func() error { return c.around.Follow(ctx, c.listener(recovered)) })
	return g.Wait()
}

// Connected is nil while containerd is there, else why not.
func (c *Core) Connected() error { return c.link.get() }

// Subscribe to container events.
func (c *Core) Subscribe() cri.Events { return c.Feed.Subscribe() }

// listener connects containerd's events with those that want them. The first connection recovers, each later one
// compares again.
func (c *Core) listener(recovered chan<- struct{}) ctrd.Listener {
	first := true
	return ctrd.Listener{
		Exited: c.Pods.Exited,
		OOM:    c.Pods.OOMKilled,
		Image:  c.around.ImageChanged,
		Lost: func(err error) {
			c.link.set(err)
			c.obs.lost(err)
		},
		Connected: func(ctx context.Context) error {
			if first {
				loaded, err := c.around.Load()
				if err != nil {
					return err
				}
				if err := c.Pods.Recover(ctx, loaded); err != nil {
					return err
				}
				first = false
				if c.around.Recovered != nil {
					c.around.Recovered()
				}
				close(recovered)
			} else if err := errors.Join(c.Pods.Relist(ctx), c.around.RefreshImages(ctx)); err != nil {
				return err
			}
			if c.around.Sweep != nil {
				if err := c.around.Sweep(ctx); err != nil {
					c.around.Log.Warn("not all that a kill left with containerd could be swept away", "err", err)
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
