// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/pod"
)

// rootLabel keeps containerd's garbage collector from what carries it.
const rootLabel = "containerd.io/gc.root"

func options(h pod.Handler) (typeurl.Any, error) {
	o := &runcoptions.Options{BinaryName: h.Binary, Root: h.Root, SystemdCgroup: h.SystemdCgroup}
	a, err := typeurl.MarshalAnyToProto(o)
	if err != nil {
		return nil, fmt.Errorf("encode options of runtime %s: %w", h.Name, err)
	}
	return a, nil
}

// CreateSandbox makes the sandbox object by which containerd lets the pod's containers share its shim. A container has one
// under its own ID, too: when containerd starts and finds a task whose process has ended, it deletes that
// task, and with it the exit code, unless there is a sandbox object of the task's ID.
func (c *Containerd) CreateSandbox(ctx context.Context, id string, h pod.Handler) error {
	o, err := options(h)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	_, err = c.client.SandboxStore().Create(ns(ctx), sandbox.Sandbox{
		ID: id, Runtime: sandbox.RuntimeOpts{Name: h.Type, Options: o}, Sandboxer: cmp.Or(h.Sandboxer, "berth"),
		Labels: map[string]string{LabelOwner: c.owner}, CreatedAt: now, UpdatedAt: now,
	})
	if err != nil {
		return fmt.Errorf("create sandbox object %s: %w", id, native(err))
	}
	return nil
}

// DeleteSandbox deletes it, once no shim of its own is left.
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
	labels := map[string]string{LabelOwner: c.owner}
	for k, v := range o.Labels {
		labels[k] = v
	}
	_, err = c.client.ContainerService().Create(ns(ctx), containers.Container{
		ID: o.ID, Labels: labels, Image: o.Image, Runtime: containers.RuntimeInfo{Name: o.Handler.Type, Options: opts},
		Spec: spec, Snapshotter: o.Snapshotter, SnapshotKey: o.SnapshotKey, SandboxID: o.SandboxID,
	})
	if err != nil {
		return fmt.Errorf("create container object %s: %w", o.ID, native(err))
	}
	return nil
}

// DeleteContainer deletes a container object.
func (c *Containerd) DeleteContainer(ctx context.Context, id string) error {
	return native(c.client.ContainerService().Delete(ns(ctx), id))
}

// Spec is a container object's OCI specification.
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

// Inventory lists what is ours.
func (c *Containerd) Inventory(ctx context.Context) (pod.Inventory, error) {
	ctx = ns(ctx)
	inv := pod.Inventory{
		Containers: map[string]map[string]string{}, Tasks: map[string]pod.TaskState{}, Sandboxes: map[string]bool{}, Snapshots: map[string]string{},
		Unreachable: map[string]bool{}, Orphans: map[string]bool{},
	}
	filter := fmt.Sprintf("labels.%q==%q", LabelOwner, c.owner)
	cs, err := c.client.ContainerService().List(ctx, filter)
	if err != nil {
		return inv, fmt.Errorf("list containers: %w", native(err))
	}
	snapshotters := map[string]bool{c.snapshotter: true}
	for _, o := range cs {
		inv.Containers[o.ID] = o.Labels
		if o.Snapshotter != "" {
			snapshotters[o.Snapshotter] = true
		}
		st, err := c.TaskState(ctx, o.ID)
		switch {
		case err == nil:
			inv.Tasks[o.ID] = st
		case !errdefs.IsNotFound(err):
			c.log.Warn("task cannot be asked", "id", o.ID, "err", err)
			inv.Unreachable[o.ID] = true
		}
	}
	if err := c.orphans(ctx, inv.Orphans); err != nil {
		return inv, err
	}
	sbs, err := c.client.SandboxStore().List(ctx, filter)
	if err != nil {
		return inv, fmt.Errorf("list sandbox objects: %w", native(err))
	}
	for _, s := range sbs {
		inv.Sandboxes[s.ID] = true
	}
	for name := range snapshotters {
		err := c.client.SnapshotService(name).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			inv.Snapshots[i.Name] = name
			return nil
		}, filter)
		if err != nil {
			return inv, fmt.Errorf("list snapshots of %s: %w", name, native(err))
		}
	}
	return inv, nil
}

// orphans lists the tasks of which there is no container.
func (c *Containerd) orphans(ctx context.Context, into map[string]bool) error {
	ts, err := c.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return fmt.Errorf("list tasks: %w", native(err))
	}
	cs, err := c.client.ContainerService().List(ctx) // of everybody, and later: a container is made before its task
	if err != nil {
		return fmt.Errorf("list containers: %w", native(err))
	}
	for _, t := range ts.Tasks {
		if !slices.ContainsFunc(cs, func(o containers.Container) bool { return o.ID == t.ID }) {
			into[t.ID] = true
		}
	}
	return nil
}
