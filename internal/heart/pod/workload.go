// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// workload is the running part of a unit: the task of a container, or the process (or the virtual
// machine) of a sandbox. It is chosen once, when the unit is made. It returns the errors of
// [Runtime].
type workload interface {
	// Kill sends a signal to the init process. Every signal ends a sandbox.
	Kill(ctx context.Context, sig unix.Signal) error
	// Wait returns the shim's measurement when the init process has ended.
	Wait(ctx context.Context) (TaskState, error)
	State(ctx context.Context) (TaskState, error)
	// Delete gives back the task or the sandbox, and its shim if that served nothing else.
	Delete(ctx context.Context) error
}

// task is the workload of a container.
type task struct {
	tasks Tasks
	id    string
}

func (t task) Kill(ctx context.Context, sig unix.Signal) error {
	return t.tasks.KillTask(ctx, t.id, sig)
}
func (t task) Wait(ctx context.Context) (TaskState, error)  { return t.tasks.WaitTask(ctx, t.id) }
func (t task) State(ctx context.Context) (TaskState, error) { return t.tasks.TaskState(ctx, t.id) }
func (t task) Delete(ctx context.Context) error             { return t.tasks.DeleteTask(ctx, t.id) }

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

// pauser is the built-in sandboxer of pods that need a process: a task whose process does nothing
// but hold namespaces, and reap.
type pauser struct {
	objects Objects
	tasks   Tasks
}

func (p pauser) Create(ctx context.Context, r SandboxRequest) (Instance, error) {
	if err := p.objects.CreateContainer(ctx, Object{ID: r.ID, Handler: r.Handler, Spec: r.Spec, Labels: r.Labels}); err != nil {
		return Instance{}, err
	}
	pid, err := p.tasks.CreateTask(ctx, TaskRequest{ID: r.ID})
	return Instance{Pid: pid}, err
}

func (p pauser) Start(ctx context.Context, id string) (Instance, error) {
	return Instance{}, p.tasks.StartTask(ctx, id)
}

func (p pauser) Stop(ctx context.Context, id string, timeout time.Duration) error {
	if timeout > 0 {
		if err := p.tasks.KillTask(ctx, id, unix.SIGTERM); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if _, err := p.tasks.WaitTask(wait, id); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return p.tasks.KillTask(ctx, id, unix.SIGKILL)
}

func (p pauser) Wait(ctx context.Context, id string) (TaskState, error) {
	return p.tasks.WaitTask(ctx, id)
}

func (p pauser) Status(ctx context.Context, id string) (TaskState, error) {
	return p.tasks.TaskState(ctx, id)
}

func (p pauser) Shutdown(ctx context.Context, id string) error { return p.tasks.DeleteTask(ctx, id) }
