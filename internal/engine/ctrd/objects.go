// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
)

// options returns the configuration for a handler's shim, in the type that it takes; nil for none.
func options(h pod.Handler) (typeurl.Any, error) {
	var o proto.Message
	switch h.Options {
	case pod.OptionsNone:
		return nil, nil
	case pod.OptionsGeneric:
		o = &runtimeoptions.Options{
			TypeUrl:    shimName(h.Type) + ".options",
			ConfigPath: h.ConfigPath,
			ConfigBody: []byte(h.ConfigBody),
		}
	default:
		o = &runcoptions.Options{
			BinaryName:    h.Binary,
			Root:          h.Root,
			SystemdCgroup: h.SystemdCgroup,
			NoPivotRoot:   h.NoPivotRoot,
			NoNewKeyring:  h.NoNewKeyring,
		}
	}
	a, err := typeurl.MarshalAnyToProto(o)
	if err != nil {
		return nil, fmt.Errorf("encode options of runtime %s: %w", h.Name, err)
	}
	return a, nil
}

// shimName returns the name of a runtime that is given by its name or by the path of its shim, as
// containerd derives the one from the other: io.containerd.runsc.v1 for containerd-shim-runsc-v1.
func shimName(kind string) string {
	rest, ok := strings.CutPrefix(filepath.Base(kind), "containerd-shim-")
	if i := strings.LastIndexByte(rest, '-'); ok && filepath.IsAbs(kind) && i > 0 {
		return "io.containerd." + rest[:i] + "." + rest[i+1:]
	}
	return kind
}

// CreateSandbox makes the sandbox object by which containerd lets the pod's containers share its
// shim. A container has one under its own ID, too: a containerd that starts and finds a task whose
// process has ended deletes that task, and with it the exit code, unless there is a sandbox object
// with the task's ID.
func (c *Containerd) CreateSandbox(ctx context.Context, id string, h pod.Handler) error {
	o, err := options(h)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	_, err = c.client.SandboxStore().Create(connection.Namespaced(ctx), sandbox.Sandbox{
		ID:        id,
		Runtime:   sandbox.RuntimeOpts{Name: h.Type, Options: o},
		Sandboxer: cmp.Or(h.Sandboxer, connection.OwnSandboxer),
		Labels:    map[string]string{connection.LabelOwner: c.owner},
		CreatedAt: now,
		UpdatedAt: now,
	})
	if err != nil {
		return fmt.Errorf("create sandbox object %s: %w", id, connection.Native(err))
	}
	return nil
}

// DeleteSandbox deletes a sandbox object. A pod's shim has ended by then.
func (c *Containerd) DeleteSandbox(ctx context.Context, id string) error {
	if err := c.shims.End(ctx, id); err != nil {
		return err
	}
	return connection.Native(c.client.SandboxStore().Delete(connection.Namespaced(ctx), id))
}

// CreateContainer makes a container object.
func (c *Containerd) CreateContainer(ctx context.Context, o pod.Object) error {
	encoded, err := typeurl.MarshalAny(o.Spec)
	if err != nil {
		return fmt.Errorf("encode spec of %s: %w", o.ID, err)
	}
	opts, err := options(o.Handler)
	if err != nil {
		return err
	}
	labels := map[string]string{}
	maps.Copy(labels, o.Labels)
	labels[connection.LabelOwner] = c.owner // last: only this label identifies the owner
	kind := o.Handler.Type
	if o.SandboxID != "" && c.shims.Key(o.SandboxID) != o.SandboxID {
		// A containerd that starts cleans up with the runtime of the object, and would end a
		// container whose shim, shared with other pods, has died meanwhile.
		kind = cmp.Or(c.sparing(ctx, o.SandboxID, o.Handler), kind)
	}
	_, err = c.client.ContainerService().Create(connection.Namespaced(ctx), containers.Container{
		ID:          o.ID,
		Labels:      labels,
		Image:       o.Image,
		Runtime:     containers.RuntimeInfo{Name: kind, Options: opts},
		Spec:        encoded,
		Snapshotter: o.Snapshotter,
		SnapshotKey: o.SnapshotKey,
		SandboxID:   o.SandboxID,
	})
	if err != nil {
		return fmt.Errorf("create container object %s: %w", o.ID, connection.Native(err))
	}
	return nil
}

// DeleteContainer deletes a container object.
func (c *Containerd) DeleteContainer(ctx context.Context, id string) error {
	c.replaced.drop(id)
	return connection.Native(c.client.ContainerService().Delete(connection.Namespaced(ctx), id))
}

// Spec returns the OCI specification of a container object.
func (c *Containerd) Spec(ctx context.Context, id string) (*specs.Spec, error) {
	o, err := c.client.ContainerService().Get(connection.Namespaced(ctx), id)
	if err != nil {
		return nil, connection.Native(err)
	}
	var s specs.Spec
	if err := typeurl.UnmarshalTo(o.Spec, &s); err != nil {
		return nil, fmt.Errorf("decode spec of %s: %w", id, err)
	}
	return &s, nil
}

// UpdateSpec replaces the OCI specification of a container object.
func (c *Containerd) UpdateSpec(ctx context.Context, id string, s *specs.Spec) error {
	a, err := typeurl.MarshalAny(s)
	if err != nil {
		return fmt.Errorf("encode spec of %s: %w", id, err)
	}
	if _, err := c.client.ContainerService().Update(connection.Namespaced(ctx), containers.Container{ID: id, Spec: a}, "spec"); err != nil {
		return fmt.Errorf("replace spec of container object %s: %w", id, connection.Native(err))
	}
	return nil
}
