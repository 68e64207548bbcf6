// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/daemon"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/serve/cri"
	"berth/test/world"
)

// Berth is one life of berth.
type Berth struct {
	*cri.Runtime
	Core *daemon.Core

	life   *world.Life
	store  *state.Store
	dir    string // of the store
	cancel context.CancelFunc
	done   chan error
}

// Boot starts a berth in w, on the records in dir, and returns once it would serve. It returns an
// error when the berth dies, or ctx ends, before that.
func Boot(ctx context.Context, w *world.World, dir string) (*Berth, error) {
	dir = filepath.Join(dir, "root")
	store, err := openState(dir)
	if err != nil {
		return nil, err
	}
	b := &Berth{store: store, dir: dir, done: make(chan error, 1)}
	b.life = w.Begin(func(f exit.Fact) { b.Core.Pods.Exited(f) })
	if b.life.Clock, err = clock.Open(clock.Path(dir), w.Clocks()); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	log := b.life.Log()
	ports, adapter, err := b.life.Ports(store, store.Owner(), log)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	b.Core = daemon.NewCore(unevenly(w.Config(), b.life.Clock), daemon.Ports{
		Ports:         ports,
		Load:          store.Load,
		Restored:      b.life.ForgetUnclaimed,
		Follow:        adapter.Follow,
		ImageChanged:  func(string) {},
		RefreshImages: func(context.Context) error { return nil },
		Log:           log,
	})
	b.life.NotifyOOM(b.Core.Pods.OOMNoted)
	b.Runtime = &cri.Runtime{Pods: b.Core.Pods, Subscribe: b.Core.Subscribe}

	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.cancel = cancel
	go func() { b.done <- b.Core.Run(run) }()
	select {
	case <-b.Core.Restored():
		return b, nil
	case <-b.life.Gone():
		return nil, errors.Join(world.ErrKilled, b.Kill())
	case err := <-b.done:
		b.done <- err
		return nil, errors.Join(fmt.Errorf("berth ended: %w", err), b.Kill())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("berth does not come up: %w", ctx.Err()), b.Kill())
	}
}

// unevenly sets the clock, and bounds that are a few microseconds longer than those of a node. Of
// two timers that end at the same virtual instant, Go lets a random one be first, and a seed would
// not replay: a call that waits for five seconds would end before or after the fifth retry of the
// awaited work, which comes every second.
func unevenly(cfg pod.Config, c *clock.Clock) pod.Config {
	cfg.Clock = c
	cfg.AttemptTimeout = 10*time.Second + 11*time.Microsecond
	cfg.CreateTimeout = 4*time.Minute + 13*time.Microsecond
	cfg.UndoTimeout = 10*time.Second + 17*time.Microsecond
	cfg.StartGrace = 2*time.Second + 19*time.Microsecond
	cfg.NetworkWait = 5*time.Second + 23*time.Microsecond
	cfg.AuditInterval = 2*time.Second + 29*time.Microsecond
	cfg.RelistInterval = 5*time.Minute + 31*time.Microsecond
	cfg.UnreachableInterval = 15*time.Second + 37*time.Microsecond
	return cfg
}

// openState opens the records. The kernel may take a moment of real time to give back the lock on a
// file that was closed, and the half second that [state.Open] waits for it is virtual: hardly any.
func openState(dir string) (*state.Store, error) {
	for try := 0; ; try++ {
		store, err := state.Open(dir)
		if !errors.Is(err, state.ErrInUse) || try == 500 {
			return store, err
		}
		pause := unix.NsecToTimespec(int64(10 * time.Millisecond))
		_ = unix.Nanosleep(&pause, nil) // not the bubble's clock
	}
}

// Kill ends the berth as SIGKILL does: from this instant on its actions have no effect. It returns
// the error of its goroutines, if they ended with one.
func (b *Berth) Kill() error {
	b.life.Kill()
	line, rerr := os.ReadFile(clock.Path(b.dir)) // which a clock that ends in order writes
	err := errors.Join(rerr, b.halt(), os.WriteFile(clock.Path(b.dir), line, 0o600))
	// Closing the store brings its journal into the database, which SIGKILL does not do. It leaves the
	// journal as it is.
	path := filepath.Join(b.dir, "berth.db")
	db, rerr := os.ReadFile(path)
	return errors.Join(err, rerr, b.store.Close(), os.WriteFile(path, db, 0o600))
}

// Stop ends the berth as SIGTERM does.
func (b *Berth) Stop() error {
	err := b.halt()
	b.life.Kill()
	return errors.Join(err, b.store.Close())
}

// halt ends the goroutines.
func (b *Berth) halt() error {
	b.Core.Feed.Close()
	b.cancel()
	err := <-b.done
	b.done <- err
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

// Dead reports whether the berth was killed.
func (b *Berth) Dead() bool { return b.life.Dead() }
