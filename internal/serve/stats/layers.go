// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/base/retry"
)

const (
	// layerInterval is the time between two samples of a layer that is measured quickly.
	layerInterval = 30 * time.Second
	// layerRest bounds the cost of one layer: after a measurement it is left alone for that many
	// times as long as the measurement took.
	layerRest = 20
	// layerBudget is how long the first measurement of a layer may take. A layer that needs more
	// gets twice the time for the next one, up to layerBudgetMax.
	layerBudget    = 5 * time.Second
	layerBudgetMax = 2 * time.Minute
	// layerWorkers is how many layers are measured at once.
	layerWorkers = 2
	// firstSample is how long a call waits for the first sample of a container that was just made.
	firstSample = 250 * time.Millisecond
)

// layer names a writable layer.
type layer struct{ snapshotter, key string }

// space is the use of a file system.
type space struct {
	bytes, inodes uint64
	at            time.Time
}

// filesystem is the file system that writable layers are on.
type filesystem struct {
	mountpoint         string
	bytes              uint64
	inodes, inodesFree uint64
	at                 time.Time
}

// layers samples writable layers in the background.
type layers struct {
	port       Layers
	mountpoint func() string // of the file system, "" while it is not known
	wake       retry.Wake

	mu    sync.Mutex
	known map[layer]*layerState
	fs    filesystem
}

// layerState is the state of one layer.
type layerState struct {
	ended  bool          // its container does not run: the last sample is kept
	space  space         // zero instant: it was not measured yet
	tried  chan struct{} // closed when the first attempt has ended
	next   time.Time     // when it is to be measured again
	budget time.Duration
	busy   bool
}

func newLayers(port Layers, mountpoint func() string) *layers {
	return &layers{
		port:       port,
		mountpoint: mountpoint,
		wake:       retry.NewWake(),
		known:      map[layer]*layerState{},
	}
}

// follow sets the layers that are sampled to running, keeps the last samples of others, and forgets
// all other layers.
func (l *layers) follow(running, others []layer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := make(map[layer]*layerState, len(running))
	for _, k := range others {
		if s := l.known[k]; s != nil {
			s.ended, known[k] = true, s
		}
	}
	for _, k := range running {
		s := l.add(k)
		s.ended, known[k] = false, s
	}
	l.known = known
}

// add begins to sample a layer. The lock is held.
func (l *layers) add(k layer) *layerState {
	s := l.known[k]
	if s == nil {
		s = &layerState{tried: make(chan struct{}), budget: layerBudget}
		l.known[k] = s
	}
	return s
}

// of returns the last samples of the layers. For the layer of a running container that was never
// looked at it waits for the first sample, within a bound for all of them together.
func (l *layers) of(ctx context.Context, running, others []layer) map[layer]space {
	var pending []chan struct{}
	l.mu.Lock()
	for _, k := range running {
		s := l.add(k)
		select {
		case <-s.tried:
		default:
			pending = append(pending, s.tried)
		}
	}
	l.mu.Unlock()
	if len(pending) > 0 {
		l.wake.Up()
		ctx, cancel := context.WithTimeout(ctx, firstSample)
		defer cancel()
		for _, tried := range pending {
			select {
			case <-tried:
			case <-ctx.Done():
			}
		}
	}
	out := make(map[layer]space, len(running)+len(others))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, list := range [][]layer{running, others} {
		for _, k := range list {
			if s := l.known[k]; s != nil && !s.space.at.IsZero() {
				out[k] = s.space
			}
		}
	}
	return out
}

// filesystem returns the file system that the layers are on, as it was seen last.
func (l *layers) filesystem() filesystem {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fs
}

// run measures the layers that are due with each tick, and when it is woken, until ctx ends.
func (l *layers) run(ctx context.Context, tick <-chan time.Time, list func() (running, others []layer)) error {
	var workers errgroup.Group
	workers.SetLimit(layerWorkers)
	for ctx.Err() == nil {
		l.follow(list())
		l.measureFilesystem()
		for k, s := l.due(); s != nil && ctx.Err() == nil; k, s = l.due() {
			workers.Go(func() error { l.measure(ctx, k, s); return nil })
		}
		select {
		case <-ctx.Done():
		case <-tick:
		case <-l.wake:
		}
	}
	return workers.Wait()
}

// due takes the layer whose turn it has been for the longest time. It is nil if there is none.
func (l *layers) due() (layer, *layerState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var (
		found layer
		state *layerState
	)
	for k, s := range l.known {
		if !s.busy && !s.ended && !s.next.After(time.Now()) && (state == nil || s.next.Before(state.next)) {
			found, state = k, s
		}
	}
	if state != nil {
		state.busy = true
	}
	return found, state
}

func (l *layers) measure(ctx context.Context, k layer, s *layerState) {
	// only the worker that has it busy writes budget
	within, cancel := context.WithTimeout(ctx, s.budget)
	defer cancel()
	began := time.Now()
	bytes, inodes, err := l.port.SnapshotUsage(within, k.snapshotter, k.key)
	took := time.Since(began)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		s.space = space{bytes, inodes, began}
	} else if within.Err() != nil {
		s.budget = min(2*s.budget, layerBudgetMax)
	}
	s.next = time.Now().Add(max(layerInterval, layerRest*took))
	s.busy = false
	select {
	case <-s.tried:
	default:
		close(s.tried)
	}
}

func (l *layers) measureFilesystem() {
	path := l.mountpoint()
	var st unix.Statfs_t
	if path == "" || unix.Statfs(path, &st) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fs = filesystem{
		mountpoint: path,
		bytes:      st.Blocks * uint64(st.Bsize), // the size of a block is above 0
		inodes:     st.Files,
		inodesFree: st.Ffree,
		at:         time.Now(),
	}
}
