// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"runtime"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/state"
)

// Sandboxer makes, asks, and ends pod sandboxes of one kind, with the verbs of containerd's sandbox controllers. The built-in
// one, [pauser], holds a pod's namespaces by a process; containerd's stand behind the same verbs, by runtime handler. What is
// not there is ErrNotFound. A verb that fails is retried by the lane of the sandbox, never by a sandboxer.
type Sandboxer interface {
	// Create makes the sandbox, not yet running. The instance has the pid if there is a process by now.
	Create(ctx context.Context, r SandboxRequest) (Instance, error)
	Start(ctx context.Context, id string) (Instance, error)
	// Platform is what the sandbox's containers run on.
	Platform(ctx context.Context, id string) (ocispec.Platform, error)
	// Stop asks the sandbox to end, and ends it after timeout; 0 ends it at once.
	Stop(ctx context.Context, id string, timeout time.Duration) error
	// Wait returns when it ended.
	Wait(ctx context.Context, id string) (TaskState, error)
	Status(ctx context.Context, id string) (TaskState, error)
	// Shutdown gives back all that Create and Start made.
	Shutdown(ctx context.Context, id string) error
	Metrics(ctx context.Context, id string) (Metric, error)
	// Update tells of a changed configuration; fields name what changed.
	Update(ctx context.Context, r SandboxRequest, fields ...string) error
}

// SandboxRequest is what a sandboxer needs to know.
type SandboxRequest struct {
	ID        string
	Handler   Handler
	Config    *runtimeapi.PodSandboxConfig
	CreatedAt time.Time
	NetNS     string      // "" for the host's network
	Spec      *specs.Spec // of the pause process; others take from it what they need: annotations, cgroup
	Labels    map[string]string
}

// Instance is a sandbox that was made or started.
type Instance struct {
	Pid      uint32         // 0: it has no process of this host, or not yet
	Endpoint state.Endpoint // where its tasks are; zero: its shim
}

// Metric is an account as its maker encodes it.
type Metric struct {
	At   time.Time
	Type string // type URL of Data
	Data []byte
}

// sandboxer of a sandbox.
func (c *Controller) sandboxer(u *unit) Sandboxer {
	if name := u.sandbox.Sandboxer; name != "" {
		return c.runtime.Sandboxer(name)
	}
	return pauser{c.runtime}
}

// pauser is the built-in sandboxer: a task whose process does nothing but hold namespaces, and reap.
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

func (pauser) Platform(context.Context, string) (ocispec.Platform, error) {
	return ocispec.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}, nil
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

func (p pauser) Metrics(ctx context.Context, id string) (Metric, error) {
	return p.runtime.TaskMetrics(ctx, id)
}

// Update has nothing to do: a pause process has no limits of its own, the pod's are its parent cgroup's.
func (pauser) Update(context.Context, SandboxRequest, ...string) error { return nil }

// What follows asks for a container's task or for a sandbox, whichever u is.

func (c *Controller) killBody(ctx context.Context, u *unit, sig unix.Signal) error {
	if u.isSandbox() {
		return c.sandboxer(u).Stop(ctx, u.id, 0)
	}
	return c.runtime.KillTask(ctx, u.id, sig)
}

func (c *Controller) waitBody(ctx context.Context, u *unit) (TaskState, error) {
	if u.isSandbox() {
		return c.sandboxer(u).Wait(ctx, u.id)
	}
	return c.runtime.WaitTask(ctx, u.id)
}

func (c *Controller) bodyState(ctx context.Context, u *unit) (TaskState, error) {
	if u.isSandbox() {
		return c.sandboxer(u).Status(ctx, u.id)
	}
	return c.runtime.TaskState(ctx, u.id)
}

func (c *Controller) deleteBody(ctx context.Context, u *unit) error {
	if u.isSandbox() {
		return c.sandboxer(u).Shutdown(ctx, u.id)
	}
	return c.runtime.DeleteTask(ctx, u.id)
}

// SandboxMetrics is a sandbox's own account.
func (c *Controller) SandboxMetrics(ctx context.Context, id string) (Metric, error) {
	u, err := c.find(id, true)
	if err != nil {
		return Metric{}, err
	}
	return c.sandboxer(u).Metrics(ctx, u.id)
}

// UpdatePodSandbox tells a sandbox of a changed configuration of its pod.
func (c *Controller) UpdatePodSandbox(ctx context.Context, id string, config *runtimeapi.PodSandboxConfig, fields ...string) error {
	u, err := c.find(id, true)
	if err != nil {
		return err
	}
	if err := isReady(u); err != nil {
		return fmt.Errorf("update sandbox: %w", err)
	}
	r := c.sandboxRequest(u)
	r.Config = config
	return c.sandboxer(u).Update(ctx, r, fields...)
}

func (c *Controller) sandboxRequest(u *unit) SandboxRequest {
	return SandboxRequest{
		ID: u.id, Handler: u.handler, Config: u.sandbox.Config, CreatedAt: u.sandbox.CreatedAt, NetNS: u.sandbox.NetNS,
		Labels: objectLabels(u.sandbox.Config.GetLabels(), kindSandbox),
	}
}
