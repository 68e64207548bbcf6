// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/clock"
	"berth/internal/base/retry"
	"berth/internal/host/pins"
)

// ownShim is the annotation of a pod that shares its shim with no other pod.
const ownShim = "io.berth.shim.own"

// pinner is the sandboxer of one sandbox without a process: its namespaces are pinned as files, and
// its shim waits for containers. The sandbox exists from when the pins are made until it is
// stopped, or until the pins are lost, as in a reboot. It outlives its shim: the next container
// starts another one.
type pinner struct {
	shims Shims
	pins  Pins
	clock *clock.Clock

	stopped chan struct{} // closed by the first Stop
	stop    sync.Once
	at      clock.Instant // of the first Stop; read once stopped is closed
}

func newPinner(s Shims, p Pins, c *clock.Clock) *pinner {
	return &pinner{shims: s, pins: p, clock: c, stopped: make(chan struct{})}
}

// Create makes the namespaces that the specification of the sandbox has, with the hostname and the
// sysctls, and starts the shim, so that the first container need not wait for it.
func (p *pinner) Create(ctx context.Context, r SandboxRequest) (Instance, error) {
	if err := p.pins.Make(pinsOf(r)); err != nil {
		return Instance{}, err
	}
	return Instance{}, p.shims.StartShim(ctx, r)
}

func pinsOf(r SandboxRequest) pins.Request {
	req := pins.Request{
		ID:       r.ID,
		Hostname: r.Spec.Hostname,
		Sysctls:  r.Spec.Linux.Sysctl,
	}
	for _, ns := range r.Spec.Linux.Namespaces {
		switch ns.Type {
		case specs.IPCNamespace:
			req.IPC = true
		case specs.UTSNamespace:
			req.UTS = true
		}
	}
	return req
}

// Start does nothing: there is nothing to run.
func (p *pinner) Start(context.Context, string) (Instance, error) { return Instance{}, nil }

// Stop ends the sandbox at once, also if it cannot be seen now whether its pins are there: nothing
// of the stop needs them. ErrNotFound: they are lost, and it has ended.
func (p *pinner) Stop(_ context.Context, id string, _ time.Duration) error {
	if err := p.pins.Check(id); errdefs.IsNotFound(err) {
		return err
	}
	p.stop.Do(func() {
		p.at = p.clock.Now()
		close(p.stopped)
	})
	return nil
}

// Wait returns when the sandbox was stopped. It does not see that pins are lost later, which the
// audit does.
func (p *pinner) Wait(ctx context.Context, id string) (TaskState, error) {
	if st, err := p.Status(ctx, id); err != nil || st.Stopped {
		return st, err
	}
	select {
	case <-p.stopped:
		return p.ended(), nil
	case <-ctx.Done():
		return TaskState{}, ctx.Err()
	}
}

// Status reports that the sandbox runs as long as its pins are there. A stopped one has ended, even
// if its pins are still there.
func (p *pinner) Status(_ context.Context, id string) (TaskState, error) {
	if retry.Closed(p.stopped) {
		return p.ended(), nil
	}
	return TaskState{Running: true}, p.pins.Check(id)
}

// ended is the state after the first Stop.
func (p *pinner) ended() TaskState { return TaskState{Stopped: true, ExitedAt: p.at} }

// Shutdown ends the shim. The pins are released by themselves.
func (p *pinner) Shutdown(ctx context.Context, id string) error { return p.shims.EndShim(ctx, id) }
