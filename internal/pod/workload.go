// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/state"
)

// workload is what runs for a unit: the task of a container, or the process (or the virtual
// machine) of a sandbox. It is chosen once, when the unit is made. Errors are those of [Runtime].
type workload interface {
	// Kill sends a signal to the init process. A sandbox is ended whatever the signal is.
	Kill(ctx context.Context, sig unix.Signal) error
	// Wait returns when the init process ended, with what the shim measured.
	Wait(ctx context.Context) (TaskState, error)
	State(ctx context.Context) (TaskState, error)
	// Delete gives back the task or the sandbox, and its shim if that served nothing else.
	Delete(ctx context.Context) error
}

// task is the workload of a container.
type task struct {
	runtime Runtime
	id      string
}

func (t task) Kill(ctx context.Context, sig unix.Signal) error {
	return t.runtime.KillTask(ctx, t.id, sig)
}
func (t task) Wait(ctx context.Context) (TaskState, error)  { return t.runtime.WaitTask(ctx, t.id) }
func (t task) State(ctx context.Context) (TaskState, error) { return t.runtime.TaskState(ctx, t.id) }
func (t task) Delete(ctx context.Context) error             { return t.runtime.DeleteTask(ctx, t.id) }

// sandboxProcess is the workload of a sandbox.
type sandboxProcess struct {
	sandboxer Sandboxer
	id        string
}

func (s sandboxProcess) Kill(ctx context.Context, _ unix.Signal) error {
	return s.sandboxer.Stop(ctx, s.id, 0)
}
func (s sandboxProcess) Wait(ctx context.Context) (TaskState, error) {
	return s.sandboxer.Wait(ctx, s.id)
}
func (s sandboxProcess) State(ctx context.Context) (TaskState, error) {
	return s.sandboxer.Status(ctx, s.id)
}
func (s sandboxProcess) Delete(ctx context.Context) error { return s.sandboxer.Shutdown(ctx, s.id) }

// Sandboxer makes, asks and ends pod sandboxes of one kind, with the verbs of containerd's sandbox
// controllers. Of the built-in ones, [pinner] pins a pod's namespaces as files and [pauser] holds
// them by a process; those of containerd stand behind the same verbs, by runtime handler. What is
// absent is ErrNotFound. A verb that fails is retried by the lane of the sandbox, never by a
// sandboxer.
type Sandboxer interface {
	// Create makes the sandbox, which does not run yet. The instance has the PID if there is a
	// process by now.
	Create(ctx context.Context, r SandboxRequest) (Instance, error)
	Start(ctx context.Context, id string) (Instance, error)
	// Stop asks the sandbox to end, and ends it after timeout; 0 ends it at once.
	Stop(ctx context.Context, id string, timeout time.Duration) error
	// Wait returns when the sandbox ended.
	Wait(ctx context.Context, id string) (TaskState, error)
	Status(ctx context.Context, id string) (TaskState, error)
	// Shutdown gives back everything that Create and Start made.
	Shutdown(ctx context.Context, id string) error
}

// SandboxRequest is what a sandboxer needs to know.
type SandboxRequest struct {
	ID        string
	Handler   Handler
	Config    *runtimeapi.PodSandboxConfig
	CreatedAt time.Time
	NetNS     string // "" for the host's network
	// Spec is that of the pause process. Other sandboxers take from it what they need: annotations,
	// the cgroup.
	Spec   *specs.Spec
	Labels map[string]string
}

// Instance is a sandbox that was made or started.
type Instance struct {
	Pid uint32 // 0: it has no process on this host, or not yet
	// Endpoint is where its tasks are reached; zero: its shim.
	Endpoint state.Endpoint
}

// sandboxerOf returns the sandboxer of a sandbox.
func (m units) sandboxerOf(s *state.Sandbox) Sandboxer {
	switch {
	case s.Sandboxer != "":
		return m.runtime.Sandboxer(s.Sandboxer)
	case s.Pinned:
		return newPinner(m.runtime, m.pins)
	default:
		return pauser{m.runtime}
	}
}

// pauser is the built-in sandboxer of pods that need a process: a task whose process does nothing
// but hold namespaces, and reap.
type pauser struct{ runtime Runtime }

func (p pauser) Create(ctx context.Context, r SandboxRequest) (Instance, error) {
	if err := p.runtime.CreateContainer(ctx, Object{ID: r.ID, Handler: r.Handler, Spec: r.Spec, Labels: r.Labels}); err != nil {
		return Instance{}, err
	}
	pid, err := p.runtime.CreateTask(ctx, TaskRequest{ID: r.ID})
	return Instance{Pid: pid}, err
}

func (p pauser) Start(ctx context.Context, id string) (Instance, error) {
	return Instance{}, p.runtime.StartTask(ctx, id)
}

func (p pauser) Stop(ctx context.Context, id string, timeout time.Duration) error {
	if timeout > 0 {
		if err := p.runtime.KillTask(ctx, id, unix.SIGTERM); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if _, err := p.runtime.WaitTask(wait, id); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return p.runtime.KillTask(ctx, id, unix.SIGKILL)
}

func (p pauser) Wait(ctx context.Context, id string) (TaskState, error) {
	return p.runtime.WaitTask(ctx, id)
}

func (p pauser) Status(ctx context.Context, id string) (TaskState, error) {
	return p.runtime.TaskState(ctx, id)
}

func (p pauser) Shutdown(ctx context.Context, id string) error { return p.runtime.DeleteTask(ctx, id) }
