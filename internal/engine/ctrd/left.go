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

	"berth/internal/base/connection"
	"berth/internal/engine/shims"
)

// EndLeft implements [pod.Tasks]. A shim keeps its state of a container until it is
// asked to delete it, even while another start of that container fails half-way: it deletes nothing
// of that one then.
func (p *PodShims) EndLeft(ctx context.Context, id string) error {
	err := p.endLeft(connection.Namespaced(ctx), id)
	if err == nil {
		p.shims.Leave(id)
	}
	return err
}

// endLeft ends the remains on the node of a task that containerd does not know. The container
// object, if there is one, tells where to look.
func (p *PodShims) endLeft(ctx context.Context, id string) error {
	o, err := p.client.ContainerService().Get(ctx, id)
	if err != nil && !errdefs.IsNotFound(connection.Native(err)) {
		return fmt.Errorf("end the remains of %s: %w", id, connection.Native(err))
	}
	left := shims.Task{ID: id}
	if err == nil {
		opts, _ := runcOptions(o.Runtime.Options)
		var spec specs.Spec
		if err := typeurl.UnmarshalTo(o.Spec, &spec); err != nil {
			return fmt.Errorf("end the remains of %s: decode its spec: %w", id, err)
		}
		left.Runtime, left.Root = opts.GetBinaryName(), opts.GetRoot()
		if spec.Linux != nil {
			left.CgroupsPath = spec.Linux.CgroupsPath
		}
	}
	return p.shims.EndLeft(ctx, left)
}

// cleanupProgram returns the program by which containerd is to clean up after a container of a pod
// whose task is made; "" for the shim's own.
func (p *PodShims) cleanupProgram(ctx context.Context, id string) string {
	if p.cleanups == nil {
		return ""
	}
	o, err := p.client.ContainerService().Get(connection.Namespaced(ctx), id)
	if err != nil || o.SandboxID == "" {
		return ""
	}
	return p.cleanupFor(ctx, o.SandboxID, o.Runtime.Name, o.Runtime.Options)
}

// ProgramAgain returns the program by which a containerd that has just started is to clean up after
// the tasks of a pod that it takes up: the one that a new task of the pod would get; "" for the
// shim's own. shim is the PID that the shim has reported, or 0.
func (p *PodShims) ProgramAgain(ctx context.Context, pod string, shim int, kind string, options typeurl.Any) string {
	root, is := runcRoot(options)
	if !is || p.cleanups == nil {
		return ""
	}
	p.shims.Add(pod, shim)
	p.cleanups.LearnHandler(ctx, pod, kind, root)
	return p.cleanupFor(ctx, pod, kind, options)
}

// cleanupFor returns the program by which containerd is to clean up after a container of a pod; ""
// for the shim's own. Only containers of runc's kind have one.
func (p *PodShims) cleanupFor(ctx context.Context, pod, kind string, options typeurl.Any) string {
	root, is := runcRoot(options)
	if !is {
		return ""
	}
	return cmp.Or(p.cleanups.For(ctx, pod, root), p.cleanups.HandlerProgram(pod, kind, root))
}

// runcRoot returns where the OCI runtime keeps its records, as options of runc's kind have it. It
// reports false for options of another kind.
func runcRoot(options typeurl.Any) (root string, is bool) {
	o, is := runcOptions(options)
	return o.GetRoot(), is
}

// runcOptions decodes options of runc's kind. Options of other runtimes have another type and name
// no binary, and there may be none at all.
func runcOptions(options typeurl.Any) (o *runcoptions.Options, is bool) {
	o = &runcoptions.Options{}
	return o, options != nil && typeurl.UnmarshalTo(options, o) == nil
}
