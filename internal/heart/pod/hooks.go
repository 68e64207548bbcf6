// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/exit"
)

// Hooks are the places where extensions of a node take part in the life of pods, such as NRI
// plug-ins.
type Hooks interface {
	// AdjustSpec may change the OCI spec of a container before its object is created. It is called
	// in CreateContainer; an error fails the creation.
	AdjustSpec(ctx context.Context, t Target, config *runtimeapi.ContainerConfig, spec *specs.Spec) error
	// SandboxRun is called when everything of a sandbox is made and runs, before it is READY. An
	// error undoes the sandbox.
	SandboxRun(ctx context.Context, t Target) error
	// Created is called after a container became CREATED. It must not block.
	Created(ctx context.Context, t Target)
	// Starting is called before the process of a container is started. An error fails the start.
	Starting(ctx context.Context, t Target) error
	// Started is called after a container became RUNNING.
	Started(ctx context.Context, t Target)
	// Ended is called after the exit of a container or sandbox was settled and published, on a lane
	// of its own, so it may wait. After an error it is called again.
	Ended(ctx context.Context, t Target, f exit.Fact) error
}
