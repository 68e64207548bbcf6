// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/spec"
)

// readiness decides whether the program of a container may run, once its task is made.
type readiness struct {
	objects   Objects
	units     *registry
	hooks     Hooks // nil for none
	processes *processes
}

// check does the last steps before the program of u runs.
func (r *readiness) check(ctx context.Context, u *unit) error {
	// The spec names the namespaces of the sandbox's process by its PID. If that process ended
	// before they were joined, the PID may have been another process'r.
	switch r.processes.observe(u.pod) {
	case processGone:
		return fmt.Errorf("the process of sandbox %s has ended: %w", u.pod.id, errdefs.ErrFailedPrecondition)
	case processUnreachable:
		return fmt.Errorf("the kernel cannot tell whether the process of sandbox %s, whose namespaces it joins, is alive: %w", u.pod.id, errdefs.ErrUnavailable)
	case processAlive, processUnknown:
	}
	if err := r.checkTarget(ctx, u); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if r.hooks == nil {
		return nil
	}
	return r.hooks.Starting(ctx, targetOf(u))
}

// checkTarget refuses to run u in the PID namespace of another process than the one it asked for.
// The OCI specification names that namespace by the PID that the target had when u was created. Now
// that the task is made, the namespace was joined: it was the target's if the target still lives.
func (r *readiness) checkTarget(ctx context.Context, u *unit) error {
	ns := u.container.Config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if ns.GetPid() != runtimeapi.NamespaceMode_TARGET || !u.handler.HostProcess {
		return nil
	}
	t, err := r.units.findContainer(ns.GetTargetId())
	if err != nil {
		return fmt.Errorf("its target container, whose PID namespace it joins: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	made, err := r.objects.Spec(ctx, u.id)
	if err != nil {
		return err
	}
	pid := t.process().Pid
	if !slices.ContainsFunc(made.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace && n.Path == spec.PIDNamespaceOf(pid)
	}) {
		return fmt.Errorf("target container %s has another process than when this container was created; create it again: %w", t.id, errdefs.ErrFailedPrecondition)
	}
	switch r.processes.observe(t) {
	case processAlive:
		return nil
	case processGone:
		return fmt.Errorf("target container %s has ended, and its PID namespace cannot be joined: %w", t.id, errdefs.ErrFailedPrecondition)
	default:
		return fmt.Errorf("the kernel cannot tell whether target container %s, whose PID namespace it joins, is alive: %w", t.id, errdefs.ErrUnavailable)
	}
}
