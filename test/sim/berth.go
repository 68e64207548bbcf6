// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"berth/internal/cri"
	"berth/internal/ctrd"
	"berth/internal/daemon"
	"berth/internal/exit"
	"berth/internal/pod"
	"berth/internal/spec"
	"berth/internal/state"
)

// Berth is one life of berth.
type Berth struct {
	*cri.Runtime
	Core *daemon.Core

	w      *World
	life   *life
	store  *state.Store
	cancel context.CancelFunc
	done   chan error
}

// Boot starts a berth on the records in dir and returns once it would serve. It returns an error
// when the berth dies, or ctx ends, before that.
func (w *World) Boot(ctx context.Context, dir string) (*Berth, error) {
	store, err := state.Open(filepath.Join(dir, "root"))
	if err != nil {
		return nil, err
	}
	l := w.begin()
	log := slog.New(slog.NewTextHandler(journal{w, l}, nil))
	b := &Berth{w: w, life: l, store: store, done: make(chan error, 1)}
	client, err := w.client(l)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	k := kernel{w: w, l: l, sink: func(f exit.Fact) { b.Core.Pods.Exited(f) }}
	l.notify = k.report
	adapter := ctrd.New(client, ctrd.Config{Owner: store.Owner(), Snapshotter: snapshotter, Logger: log})
	b.Core = daemon.NewCore(w.config(), daemon.Ports{
		Ports: pod.Ports{
			Runtime: adapter,
			Kernel:  k,
			Cgroups: cgroups{w, l},
			Network: plumbing{w, l},
			Files:   files{w, l},
			Stdios:  outputs{w, l},
			Images:  library{},
			Store:   disk{w, l, store},
		},
		Load:          store.Load,
		Restored:      k.forgetUnclaimed,
		Follow:        adapter.Follow,
		ImageChanged:  func(string) {},
		RefreshImages: func(context.Context) error { return nil },
		Log:           log,
	})
	b.Runtime = &cri.Runtime{Pods: b.Core.Pods, Subscribe: b.Core.Subscribe}

	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.cancel = cancel
	restored := make(chan struct{})
	go func() { b.done <- b.Core.Run(run, restored) }()
	select {
	case <-restored:
		return b, nil
	case <-l.gone:
		return nil, errors.Join(errKilled, b.Kill())
	case err := <-b.done:
		b.done <- err
		return nil, errors.Join(fmt.Errorf("berth ended: %w", err), b.Kill())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("berth does not come up: %w", ctx.Err()), b.Kill())
	}
}

// config is a node's. IDs and jitter come from the seed.
func (w *World) config() pod.Config {
	return pod.Config{
		DefaultHandler: "runc",
		ResolvConf:     "/nonexistent",
		Handlers: map[string]pod.Handler{
			"runc": {Name: "runc", Type: "runc", HostProcess: true},
			"vm":   {Name: "vm", Type: "vm"},
		},
		Host:  spec.Host{MinOOMScoreAdj: -1000, Capabilities: []string{"CAP_CHOWN"}},
		NewID: w.newID,
		Rand:  func() float64 { return w.jitter },
	}
}

// Kill ends the berth as SIGKILL does: from this instant on nothing that it does has an effect. The
// error is that of its goroutines, if they ended with one.
func (b *Berth) Kill() error {
	b.w.mu.Lock()
	b.w.killLocked(b.life)
	b.w.mu.Unlock()
	return b.end()
}

// Stop ends the berth as SIGTERM does.
func (b *Berth) Stop() error {
	err := b.end()
	b.w.mu.Lock()
	b.w.killLocked(b.life)
	b.w.mu.Unlock()
	return err
}

func (b *Berth) end() error {
	b.Core.Feed.Close()
	b.cancel()
	err := <-b.done
	b.done <- err
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, b.store.Close())
}

// Dead reports whether the berth was killed.
func (b *Berth) Dead() bool { return b.life.dead() }
