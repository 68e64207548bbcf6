// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
)

// sandboxer puts one of containerd's sandbox controllers behind the verbs of pod.Sandboxer: the
// controller of shims that have a sandbox API ("shim"), or one of a plug-in.
type sandboxer struct {
	p    *PodShims
	name string
}

// Sandboxer returns the sandbox controller of that name. An unknown one fails when it is used.
func (p *PodShims) Sandboxer(name string) pod.Sandboxer { return sandboxer{p, name} }

func (s sandboxer) controller() sandbox.Controller { return s.p.client.SandboxController(s.name) }

func (s sandboxer) fail(verb, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s sandbox %s by %s: %w", verb, id, s.name, connection.Native(err))
}

// Create makes the sandbox. Its options are the CRI configuration of the pod, as controllers
// expect.
func (s sandboxer) Create(ctx context.Context, r pod.SandboxRequest) (pod.Instance, error) {
	o, err := s.object(r)
	if err != nil {
		return pod.Instance{}, err
	}
	opts := []sandbox.CreateOpt{sandbox.WithOptions(r.Config)}
	if r.NetNS != "" {
		opts = append(opts, sandbox.WithNetNSPath(r.NetNS))
	}
	return pod.Instance{}, s.fail("create", r.ID, s.controller().Create(connection.Namespaced(ctx), o, opts...))
}

func (s sandboxer) object(r pod.SandboxRequest) (sandbox.Sandbox, error) {
	o, err := options(r.Handler)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	var spec typeurl.Any
	if r.Spec != nil {
		if spec, err = typeurl.MarshalAny(r.Spec); err != nil {
			return sandbox.Sandbox{}, fmt.Errorf("encode spec of %s: %w", r.ID, err)
		}
	}
	return sandbox.Sandbox{
		ID:        r.ID,
		Spec:      spec,
		Runtime:   sandbox.RuntimeOpts{Name: r.Handler.Type, Options: o},
		Sandboxer: s.name,
		Labels:    map[string]string{connection.LabelOwner: s.p.owner},
		CreatedAt: r.CreatedAt.UTC(),
		UpdatedAt: time.Now().UTC(),
	}, nil
}

// Start runs the sandbox.
func (s sandboxer) Start(ctx context.Context, id string) (pod.Instance, error) {
	i, err := s.controller().Start(connection.Namespaced(ctx), id)
	if err != nil {
		return pod.Instance{}, s.fail("start", id, err)
	}
	s.p.shims.Remember(id, i.Pid)
	return pod.Instance{Pid: i.Pid, Endpoint: state.Endpoint{Address: i.Address, Version: i.Version}}, nil
}

// Stop asks the sandbox to end, and ends it after timeout.
func (s sandboxer) Stop(ctx context.Context, id string, timeout time.Duration) error {
	_, err := askShim(connection.Namespaced(ctx), s.p.asker, id, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.controller().Stop(ctx, id, sandbox.WithTimeout(timeout))
	})
	return s.fail("stop", id, err)
}

// Wait returns when the sandbox has ended.
func (s sandboxer) Wait(ctx context.Context, id string) (pod.TaskState, error) {
	e, err := askShim(connection.Namespaced(ctx), s.p.asker, id, func(ctx context.Context) (sandbox.ExitStatus, error) {
		return s.controller().Wait(ctx, id)
	})
	if err != nil {
		return pod.TaskState{}, s.fail("wait for", id, err)
	}
	return pod.TaskState{Stopped: true, Code: e.ExitStatus, ExitedAt: s.p.clock.Instant(e.ExitedAt)}, nil
}

// Status asks for the state of the sandbox. It takes taskTimeout at most, even if the sandbox's
// shim does not answer. Containerd's status of a sandbox that has ended lacks the exit code, which
// a wait has.
func (s sandboxer) Status(ctx context.Context, id string) (pod.TaskState, error) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(ctx), taskTimeout)
	defer cancel()
	st, err := askShim(ctx, s.p.asker, id, func(ctx context.Context) (sandbox.ControllerStatus, error) {
		return s.controller().Status(ctx, id, false)
	})
	switch {
	case err != nil:
		return pod.TaskState{}, s.fail("ask for", id, err)
	case st.State == runtimeapi.PodSandboxState_SANDBOX_READY.String():
		return pod.TaskState{Pid: st.Pid, Running: true}, nil
	case st.State == "": // containerd's way to report that there is no shim
		return pod.TaskState{}, s.fail("ask for", id, errdefs.ErrNotFound)
	}
	return s.Wait(ctx, id)
}

// Shutdown releases all that the sandbox has.
func (s sandboxer) Shutdown(ctx context.Context, id string) error {
	return s.fail("shut down", id, s.end(ctx, id))
}
