// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/ops"
	"berth/internal/engine/ctrd"
	"berth/internal/heart/pod"
)

// served is the controller as CRI calls it: a call that needs containerd at once is refused while
// containerd is away. All others are answered from the records, or wait for their lanes.
type served struct {
	*pod.Controller
	reach   func(ctx context.Context) error // waits a little for containerd
	plugins plugins
}

// makeable waits as reach does, for a call that makes a pod or a container, and also for the NRI
// plug-ins that berth starts, once: see plugins.admit.
func (s served) makeable(ctx context.Context) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Plugin, What: "an NRI plug-in that berth has started (registration)"})
	defer op.End()
	select {
	case <-s.plugins.admitted:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the NRI plug-ins that berth starts: %w", ctx.Err())
	}
}

// RunPodSandbox makes a sandbox.
func (s served) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if err := s.makeable(ctx); err != nil {
		return "", fmt.Errorf("run sandbox %s: %w", config.GetMetadata().GetName(), err)
	}
	return s.Controller.RunPodSandbox(ctx, config, handler)
}

// CreateContainer makes a container.
func (s served) CreateContainer(ctx context.Context, podID string, config *runtimeapi.ContainerConfig) (string, error) {
	if err := s.makeable(ctx); err != nil {
		return "", fmt.Errorf("create container %s: %w", config.GetMetadata().GetName(), err)
	}
	return s.Controller.CreateContainer(ctx, podID, config)
}

// StartContainer starts a container.
func (s served) StartContainer(ctx context.Context, id string) error {
	if err := s.makeable(ctx); err != nil {
		return fmt.Errorf("start container %s: %w", id, err)
	}
	return s.Controller.StartContainer(ctx, id)
}

// processes makes the processes of exec. Right after a start of berth it waits a little for
// containerd, so that a probe or a person does not have to ask again.
type processes struct {
	*ctrd.Execs
	spec  func(ctx context.Context, id string) (*specs.Spec, error)
	reach func(ctx context.Context) error // waits a little for containerd
}

// Spec returns the specification of a container, of which a process is made.
func (p processes) Spec(ctx context.Context, id string) (*specs.Spec, error) {
	if err := p.reach(ctx); err != nil {
		return nil, err
	}
	return p.spec(ctx, id)
}
