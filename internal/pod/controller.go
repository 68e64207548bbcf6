// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"berth/internal/lane"
	"berth/internal/spec"
	"berth/internal/state"
)

// Config is the controller's settings. Zero durations take the defaults.
type Config struct {
	Root, State    string // persistent and volatile directories of berth's own
	Handlers       map[string]Handler
	DefaultHandler string
	Host           spec.Host
	// PauseRootfs is a directory that holds the built-in pause program and nothing else.
	PauseRootfs string
	MaxLogLine  int // bytes; longer lines are split
	ResolvConf  string

	AttemptTimeout  time.Duration // of one lane attempt; 10 s
	BackoffMin      time.Duration // 1 s
	BackoffMax      time.Duration // 5 min
	MeasureTimeout  time.Duration // for a code, once a process is known to have ended; 1.5 s
	DrainTimeout    time.Duration // for the log before an exit is settled; 250 ms
	LeftoverTimeout time.Duration // for processes that outlive init in a shared PID namespace; 1 s
	CreateTimeout   time.Duration // of RunPodSandbox, CreateContainer and StartContainer, whatever became of the caller; 4 min
	UndoTimeout     time.Duration // of undoing a failed creation before it is left to the lane; 10 s
	NetworkWait     time.Duration // StopPodSandbox waits so long for the network's release; 5 s
	AuditInterval   time.Duration // 2 s
	RelistInterval  time.Duration // of comparing with all that containerd has; 5 min

	// NewID makes the ID of a sandbox or container; nil: 64 random hexadecimal digits.
	NewID func() string
	// Rand, in [0,1), spreads the back-off; nil: a random source. The simulation sets both.
	Rand func() float64
}

func (cfg *Config) defaults() {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&cfg.AttemptTimeout, 10 * time.Second}, {&cfg.BackoffMin, time.Second}, {&cfg.BackoffMax, 5 * time.Minute},
		{&cfg.MeasureTimeout, 1500 * time.Millisecond}, {&cfg.DrainTimeout, 250 * time.Millisecond},
		{&cfg.LeftoverTimeout, time.Second}, {&cfg.CreateTimeout, 4 * time.Minute}, {&cfg.UndoTimeout, 10 * time.Second},
		{&cfg.NetworkWait, 5 * time.Second}, {&cfg.AuditInterval, 2 * time.Second}, {&cfg.RelistInterval, 5 * time.Minute},
	} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	if cfg.NewID == nil {
		cfg.NewID = newID
	}
}

// Outside is everything that the controller works on. All fields are required but Observer.
type Outside struct {
	Runtime  Runtime
	Kernel   Kernel
	Cgroups  Cgroups
	Network  Network
	Stdios   Stdios
	Images   Images
	Store    Store
	Feed     Feed
	Observer Observer
	// LaneObserver may be nil.
	LaneObserver lane.Observer[LaneKey]
}

// Controller holds every sandbox and container. Its methods may be called from any goroutine
// once Recover has returned; Run must be running.
type Controller struct {
	cfg     Config
	runtime Runtime
	kernel  Kernel
	cgroups Cgroups
	network Network
	stdios  Stdios
	images  Images
	store   Store
	feed    Feed
	obs     Observer
	lanes   *lane.Runner[LaneKey, Step]

	// ops are the goroutines of operations that outlive their callers, and of stdio.
	ops struct {
		sync.Mutex
		sync.WaitGroup
		closed bool // Run has ended: nothing is begun any more
	}
	// life ends when Run does: operations that outlive their callers end with it.
	life context.Context
	end  context.CancelFunc

	units struct {
		sync.RWMutex
		byID map[string]*unit
	}
	flights flights
	strays  strays
}

// New makes a controller without any unit. Call Recover, then Run.
func New(cfg Config, o Outside) *Controller {
	cfg.defaults()
	c := &Controller{
		cfg: cfg, runtime: o.Runtime, kernel: o.Kernel, cgroups: o.Cgroups, network: o.Network, stdios: o.Stdios,
		images: o.Images, store: o.Store, feed: o.Feed, obs: o.Observer,
	}
	if c.obs == nil {
		c.obs = deaf{}
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.units.byID = map[string]*unit{}
	c.flights.byName = map[string]*flight{}
	c.strays.byID, c.strays.damaged = map[string]stray{}, map[string]bool{}
	c.lanes = lane.NewRunner(lane.Config{
		Backoff:  lane.Backoff{Min: cfg.BackoffMin, Max: cfg.BackoffMax, Factor: 2, Jitter: 0.1},
		Deadline: cfg.AttemptTimeout,
		Rand:     cfg.Rand,
	}, c.attempt, o.LaneObserver)
	return c
}

type deaf struct{}

func (deaf) Event(string, string, error, ...any)   {}
func (deaf) Repaired(string)                       {}
func (deaf) Settled(string, string, time.Duration) {}

// Run drives the lanes and the audit until ctx ends, then ends the operations in flight and waits
// for them. Processes of pods go on.
func (c *Controller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.lanes.Run(ctx) })
	g.Go(func() error { c.auditLoop(ctx); return nil })
	err := g.Wait()
	c.ops.Lock()
	c.ops.closed = true
	c.ops.Unlock()
	c.end()
	c.ops.Wait()
	return err
}

// spawn runs f in a goroutine that Run waits for. False: berth is stopping, and f does not run.
func (c *Controller) spawn(f func()) bool {
	c.ops.Lock()
	defer c.ops.Unlock()
	if c.ops.closed {
		return false
	}
	c.ops.Go(f)
	return true
}

// errStopping is given to who asks for something while berth stops.
var errStopping = fmt.Errorf("berth is stopping; ask again once it is back: %w", errdefs.ErrUnavailable)

// Lanes shows the lanes that are not idle.
func (c *Controller) Lanes() []lane.Lane { return c.lanes.Snapshot() }

func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (c *Controller) unit(id string) (*unit, bool) {
	c.units.RLock()
	defer c.units.RUnlock()
	u, ok := c.units.byID[id]
	return u, ok
}

// add makes u known. False: u's sandbox is gone or going, and takes no more containers.
func (c *Controller) add(u *unit) bool {
	c.units.Lock()
	defer c.units.Unlock()
	if !u.isSandbox() && !u.pod.join(u) {
		return false
	}
	c.units.byID[u.id] = u
	return true
}

// drop makes u unknown, and its name free.
func (c *Controller) drop(u *unit) {
	c.units.Lock()
	delete(c.units.byID, u.id)
	c.units.Unlock()
	if !u.isSandbox() {
		u.pod.leave(u)
	}
	c.flights.release(nameOf(u), u.id)
}

// find resolves an ID or an unambiguous prefix of one, as people type it.
func (c *Controller) find(id string, sandbox bool) (*unit, error) {
	kind := "container"
	if sandbox {
		kind = "sandbox"
	}
	if id == "" {
		return nil, fmt.Errorf("find %s: no ID was given: %w", kind, errdefs.ErrInvalidArgument)
	}
	c.units.RLock()
	defer c.units.RUnlock()
	if u, ok := c.units.byID[id]; ok && u.isSandbox() == sandbox {
		return u, nil
	}
	var found []*unit
	for full, u := range c.units.byID {
		if u.isSandbox() == sandbox && strings.HasPrefix(full, id) {
			found = append(found, u)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("%s %q: %w", kind, id, errdefs.ErrNotFound)
	default:
		return nil, fmt.Errorf("%s %q: %d have IDs that begin so; give more of it: %w", kind, id, len(found), errdefs.ErrInvalidArgument)
	}
}

// all lists the units of one kind, the oldest first: what is done for each is done in a fixed order.
func (c *Controller) all(sandboxes bool) []*unit {
	c.units.RLock()
	defer c.units.RUnlock()
	var list []*unit
	for _, u := range c.units.byID {
		if u.isSandbox() == sandboxes {
			list = append(list, u)
		}
	}
	slices.SortFunc(list, (*unit).older)
	return list
}

// visible reports whether clients are told of u: not while it is being made.
func visible(u *unit) bool { return u.now().Phase != state.Creating }

// handler resolves a runtime handler's name.
func (c *Controller) handler(name string) (Handler, error) {
	if name == "" {
		name = c.cfg.DefaultHandler
	}
	h, ok := c.cfg.Handlers[name]
	if !ok {
		return Handler{}, fmt.Errorf("runtime handler %q is not configured: %w", name, errdefs.ErrInvalidArgument)
	}
	return h, nil
}
