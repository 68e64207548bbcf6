// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/pod"
)

// rootLabel keeps what carries it from containerd's garbage collector.
const rootLabel = "containerd.io/gc.root"

func options(h pod.Handler) (typeurl.Any, error) {
	o := &runcoptions.Options{BinaryName: h.Binary, Root: h.Root, SystemdCgroup: h.SystemdCgroup}
	a, err := typeurl.MarshalAnyToProto(o)
	if err != nil {
		return nil, fmt.Errorf("encode options of runtime %s: %w", h.Name, err)
	}
	return a, nil
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
	_, err = c.client.SandboxStore().Create(ns(ctx), sandbox.Sandbox{
		ID:        id,
		Runtime:   sandbox.RuntimeOpts{Name: h.Type, Options: o},
		Sandboxer: cmp.Or(h.Sandboxer, "berth"),
		Labels:    map[string]string{LabelOwner: c.owner},
		CreatedAt: now,
		UpdatedAt: now,
	})
	if err != nil {
		return fmt.Errorf("create sandbox object %s: %w", id, native(err))
	}
	return nil
}

// DeleteSandbox deletes a sandbox object. A pod's shim has ended by then.
func (c *Containerd) DeleteSandbox(ctx context.Context, id string) error {
	if err := c.endShim(ctx, id); err != nil {
		return err
	}
	return native(c.client.SandboxStore().Delete(ns(ctx), id))
}

// CreateContainer makes a container object.
func (c *Containerd) CreateContainer(ctx context.Context, o pod.Object) error {
	spec, err := typeurl.MarshalAny(o.Spec)
	if err != nil {
		return fmt.Errorf("encode spec of %s: %w", o.ID, err)
	}
	opts, err := options(o.Handler)
	if err != nil {
		return err
	}
	labels := map[string]string{}
	maps.Copy(labels, o.Labels)
	labels[LabelOwner] = c.owner // last: nobody else says whose the object is
	_, err = c.client.ContainerService().Create(ns(ctx), containers.Container{
		ID:          o.ID,
		Labels:      labels,
		Image:       o.Image,
		Runtime:     containers.RuntimeInfo{Name: o.Handler.Type, Options: opts},
		Spec:        spec,
		Snapshotter: o.Snapshotter,
		SnapshotKey: o.SnapshotKey,
		SandboxID:   o.SandboxID,
	})
	if err != nil {
		return fmt.Errorf("create container object %s: %w", o.ID, native(err))
	}
	return nil
}

// DeleteContainer deletes a container object.
func (c *Containerd) DeleteContainer(ctx context.Context, id string) error {
	c.replaced.drop(id)
	return native(c.client.ContainerService().Delete(ns(ctx), id))
}

// Spec is the OCI specification of a container object.
func (c *Containerd) Spec(ctx context.Context, id string) (*specs.Spec, error) {
	o, err := c.client.ContainerService().Get(ns(ctx), id)
	if err != nil {
		return nil, native(err)
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
	if _, err := c.client.ContainerService().Update(ns(ctx), containers.Container{ID: id, Spec: a}, "spec"); err != nil {
		return fmt.Errorf("replace spec of container object %s: %w", id, native(err))
	}
	return nil
}

// PrepareSnapshot makes a writable layer.
func (c *Containerd) PrepareSnapshot(ctx context.Context, snapshotter, key, chainID string) error {
	_, err := c.client.SnapshotService(snapshotter).Prepare(ns(ctx), key, chainID, snapshots.WithLabels(map[string]string{
		LabelOwner: c.owner, rootLabel: time.Now().UTC().Format(time.RFC3339),
	}))
	if err != nil {
		return fmt.Errorf("prepare snapshot %s on %s: %w", key, chainID, native(err))
	}
	return nil
}

// DeleteSnapshot removes a writable layer.
func (c *Containerd) DeleteSnapshot(ctx context.Context, snapshotter, key string) error {
	return native(c.client.SnapshotService(snapshotter).Remove(ns(ctx), key))
}

// SnapshotUsage measures a writable layer, for which its files are walked. A walk in this process or
// in another containerd's ends when ctx ends.
func (c *Containerd) SnapshotUsage(ctx context.Context, snapshotter, key string) (bytes, inodes uint64, err error) {
	u, err := c.client.SnapshotService(snapshotter).Usage(ns(ctx), key)
	if err != nil {
		return 0, 0, fmt.Errorf("measure snapshot %s: %w", key, native(err))
	}
	return uint64(max(u.Size, 0)), uint64(max(u.Inodes, 0)), nil
}
