// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"cmp"
	"context"
	"fmt"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/connection"
	"berth/internal/shims"
)

// EndLeft ends and removes what a start may have left on the node of a container of which neither
// containerd nor its shim knows. A shim keeps what it knew of a container until it is asked to
// delete it, also while another start of that container fails half-way: it deletes nothing of that
// one then. What is absent is a success.
func (c *Containerd) EndLeft(ctx context.Context, id string) error {
	return c.endLeft(connection.Namespaced(ctx), id)
}

// endLeft ends what may be left on the node of a task that containerd does not know. The container
// object says where to look, if there is one.
func (c *Containerd) endLeft(ctx context.Context, id string) error {
	o, err := c.client.ContainerService().Get(ctx, id)
	if err != nil && !errdefs.IsNotFound(connection.Native(err)) {
		return fmt.Errorf("end what is left of %s: %w", id, connection.Native(err))
	}
	left := shims.Task{ID: id}
	if err == nil {
		var opts runcoptions.Options
		var spec specs.Spec
		// The options of runtimes that are not of runc's kind are of another type and name no
		// binary.
		_ = typeurl.UnmarshalTo(o.Runtime.Options, &opts)
		if err := typeurl.UnmarshalTo(o.Spec, &spec); err != nil {
			return fmt.Errorf("end what is left of %s: decode its spec: %w", id, err)
		}
		left.Runtime, left.Root = opts.GetBinaryName(), opts.GetRoot()
		if spec.Linux != nil {
			left.CgroupsPath = spec.Linux.CgroupsPath
		}
	}
	return c.shims.EndLeft(ctx, left)
}

// cleanupProgram returns the program by which containerd is to clean up after a container of a pod;
// "" for the shim's own. Only containers of runc's kind have one.
func (c *Containerd) cleanupProgram(ctx context.Context, id string) string {
	if !c.shims.MakesCleanups() {
		return ""
	}
	o, err := c.client.ContainerService().Get(connection.Namespaced(ctx), id)
	if err != nil || o.SandboxID == "" {
		return ""
	}
	var opts runcoptions.Options
	if err := typeurl.UnmarshalTo(o.Runtime.Options, &opts); err != nil {
		return "" // another kind
	}
	program := c.shims.CleanupFor(ctx, o.SandboxID, opts.GetRoot())
	return cmp.Or(program, c.shims.HandlerProgram(o.SandboxID, o.Runtime.Name, opts.GetRoot()))
}
