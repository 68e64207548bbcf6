// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: it reads and moves the metadata of containerd's CRI plug-in on its
// objects in containerd, which is not a stable interface: docs/tricks.md.

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/anypb"

	"berth/internal/base/clock"
	"berth/internal/base/connection"
	"berth/internal/base/exit"
	"berth/internal/engine/adopt"
	"berth/internal/host/spec"
)

const (
	// sandboxExtension and containerExtension are the keys under which the plug-in keeps its
	// metadata of an object, with the object; storeExtension is the key for a sandbox object.
	// Without it, the plug-in does not know the object.
	sandboxExtension   = "io.cri-containerd.sandbox.metadata"
	containerExtension = "io.cri-containerd.container.metadata"
	storeExtension     = "metadata"
	// adoptedExtension is the key under which the metadata is kept for as long as berth has the
	// object.
	adoptedExtension = "io.berth.adopted.metadata"
	// labelGuard marks the sandbox object that keeps the task of a container from containerd's
	// clean-up while the container is still the plug-in's. It is not [connection.LabelOwner],
	// because berth removes objects that have that label and no record.
	labelGuard = "io.berth.adopting"
	// pluginDir is the name of the plug-in's directories in containerd's.
	pluginDir = "io.containerd.grpc.v1.cri"
	// podSandbox is the plug-in's sandbox controller of pods with a pause process. berth's sandbox
	// objects have connection.OwnSandboxer in its place.
	podSandbox = "podsandbox"
)

// Adoption reads the objects of containerd's CRI plug-in, and moves them between the plug-in and a
// berth. It works without [Containerd.Follow].
type Adoption struct {
	clock  *clock.Clock
	client *connection.Connection
	owner  string
}

// NewAdoption returns the adoption of a berth with an ID, through a connection that the caller
// closes.
func NewAdoption(conn *connection.Connection, owner string, c *clock.Clock) *Adoption {
	return &Adoption{client: conn, owner: owner, clock: c}
}

func asking(ctx context.Context) context.Context {
	return connection.Asking(connection.Namespaced(ctx))
}

// Answers returns nil if containerd answers. Call it until it succeeds; each call tries to connect
// at once, because the pods are not served meanwhile.
func (a *Adoption) Answers(ctx context.Context) error {
	a.client.Hurry()
	_, err := a.client.Version(asking(ctx))
	return connection.Native(err)
}

// UUID returns containerd's own ID, which is kept in its directory; "" if it has none.
func (a *Adoption) UUID(ctx context.Context) (string, error) {
	resp, err := a.client.IntrospectionService().Server(asking(ctx))
	if err != nil {
		return "", fmt.Errorf("ask which containerd this is: %w", connection.Native(err))
	}
	return resp.GetUUID(), nil
}

// Serves reports whether the plug-in serves CRI.
func (a *Adoption) Serves(ctx context.Context) (bool, error) {
	resp, err := a.client.IntrospectionService().Plugins(asking(ctx), "type==io.containerd.grpc.v1,id==cri")
	if err != nil {
		return false, fmt.Errorf("ask whether containerd's CRI plug-in serves: %w", connection.Native(err))
	}
	for _, p := range resp.Plugins {
		if p.InitErr == nil {
			return true, nil
		}
	}
	return false, nil
}

// Dirs returns the plug-in's directories. state is containerd's volatile directory.
func (a *Adoption) Dirs(ctx context.Context, state string) (root, volatile string, err error) {
	content, err := a.client.ContentRoot(connection.Asking(ctx))
	if err != nil {
		return "", "", err
	}
	if content == "" {
		return "", "", fmt.Errorf("find containerd's directory: its content store does not export it: %w", errdefs.ErrUnavailable)
	}
	return filepath.Join(filepath.Dir(content), pluginDir), filepath.Join(state, pluginDir), nil
}

// Objects lists all container objects of the namespace, with the plug-in's metadata and the answers
// of the shims.
func (a *Adoption) Objects(ctx context.Context) ([]adopt.Object, error) {
	ctx = asking(ctx)
	cs, err := a.client.ContainerService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", connection.Native(err))
	}
	sbs, err := a.client.SandboxStore().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list sandbox objects: %w", connection.Native(err))
	}
	sandboxers, half := map[string]string{}, map[string]sandbox.Sandbox{}
	for _, s := range sbs {
		sandboxers[s.ID] = s.Sandboxer
		if holds(s.Extensions, storeExtension) {
			half[s.ID] = s
		}
	}
	out := make([]adopt.Object, len(cs))
	var g errgroup.Group
	g.SetLimit(shimsAtOnce)
	for i, c := range cs {
		delete(half, c.ID)
		g.Go(func() (err error) {
			out[i], err = a.object(ctx, c)
			out[i].Sandboxer = sandboxers[c.ID]
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for id, s := range half {
		out = append(out, adopt.Object{
			ID:        id,
			Kind:      spec.KindSandbox,
			Metadata:  s.Extensions[storeExtension].GetValue(),
			Sandboxer: s.Sandboxer,
			Runtime:   s.Runtime.Name,
			CreatedAt: s.CreatedAt,
			Half:      true,
		})
	}
	return out, nil
}

func (a *Adoption) object(ctx context.Context, c containers.Container) (adopt.Object, error) {
	o := adopt.Object{
		ID:          c.ID,
		Kind:        c.Labels[spec.LabelKind],
		Owner:       c.Labels[connection.LabelOwner],
		Image:       c.Image,
		Runtime:     c.Runtime.Name,
		Snapshotter: c.Snapshotter,
		SnapshotKey: c.SnapshotKey,
		CreatedAt:   c.CreatedAt,
	}
	for _, key := range []string{sandboxExtension, containerExtension, adoptedExtension} {
		if holds(c.Extensions, key) {
			o.Metadata = c.Extensions[key].GetValue()
		}
	}
	if c.Spec != nil {
		o.Spec = new(specs.Spec)
		if err := typeurl.UnmarshalTo(c.Spec, o.Spec); err != nil {
			return o, fmt.Errorf("decode spec of %s: %w", c.ID, err)
		}
	}
	switch t, err := a.task(ctx, c.ID); {
	case errdefs.IsNotFound(err):
	case err != nil:
		o.Unasked = err.Error()
	default:
		o.Task = t
	}
	return o, nil
}

// task asks a shim for a task.
func (a *Adoption) task(ctx context.Context, id string) (*adopt.Task, error) {
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	resp, err := a.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return nil, connection.Native(err)
	}
	p := resp.GetProcess()
	t := &adopt.Task{
		Pid:      p.GetPid(),
		Stdin:    p.GetStdin(),
		Stdout:   p.GetStdout(),
		Stderr:   p.GetStderr(),
		Terminal: p.GetTerminal(),
	}
	switch p.GetStatus() {
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		t.Running = true
	case task.Status_STOPPED:
		t.Stopped, t.Code, t.ExitedAt = true, p.GetExitStatus(), p.GetExitedAt().AsTime()
	case task.Status_UNKNOWN:
		return nil, errors.New("its state is missing in the answer")
	}
	return t, nil
}

// Runs reports whether the process of a task runs, and has this pid.
func (a *Adoption) Runs(ctx context.Context, id string, pid uint32) (bool, error) {
	t, err := a.task(asking(ctx), id)
	if err != nil {
		return false, err
	}
	return t.Running && t.Pid == pid, nil
}

// Ended returns when the process of a task has ended, with its shim's knowledge about that. A
// containerd that is stopped meanwhile ends the call with an error.
func (a *Adoption) Ended(ctx context.Context, id string) (exit.Fact, error) {
	r, err := a.client.TaskService().Wait(asking(ctx), &tasks.WaitRequest{ContainerID: id})
	if err != nil {
		return exit.Fact{}, fmt.Errorf("wait for task %s: %w", id, connection.Native(err))
	}
	return exit.Fact{ID: id, Code: r.GetExitStatus(), Measured: true, At: a.clock.Instant(r.GetExitedAt().AsTime()), Origin: exit.Task}, nil
}

// ImageRefs returns the references of images in a status, by their IDs. The plug-in keeps an image
// under its ID as well, and its digest reference is another name of the same target.
func (a *Adoption) ImageRefs(ctx context.Context) (map[string]string, error) {
	all, err := a.client.ImageService().List(asking(ctx))
	if err != nil {
		return nil, fmt.Errorf("list images: %w", connection.Native(err))
	}
	digests := map[string]string{}
	for _, i := range all {
		if strings.Contains(i.Name, "@") {
			digests[i.Target.Digest.String()] = i.Name
		}
	}
	refs := map[string]string{}
	for _, i := range all {
		if ref := digests[i.Target.Digest.String()]; strings.HasPrefix(i.Name, "sha256:") && ref != "" {
			refs[i.Name] = ref
		}
	}
	return refs, nil
}

// Guard makes a sandbox object with the ID of a container, which keeps a containerd that starts
// from deleting the container's task with its exit code: see [Containerd.CreateSandbox]. The
// container is still the plug-in's. [Adoption.Guards] tells how the plug-in treats the object when
// it starts.
func (a *Adoption) Guard(ctx context.Context, id string) error {
	err := a.makeSandbox(asking(ctx), id, func(s *sandbox.Sandbox) { s.Labels[labelGuard] = a.owner })
	if err != nil {
		return fmt.Errorf("guard the task of %s: %w", id, err)
	}
	return nil
}

// Guards is how containerd's CRI plug-in treats objects made by [Adoption.Guard] when it starts.
type Guards string

// It depends on the version of containerd.
const (
	GuardsRemoved Guards = "removed" // it removes them
	GuardsLeft    Guards = "left"    // it does not look at sandbox objects
	GuardsFatal   Guards = "fatal"   // it does not start beside them
)

// removesGuards is the oldest version of containerd whose plug-in was seen to remove a sandbox
// object without metadata of its own. Version 2.0.5 does not start with one, and those between were
// not tested.
var removesGuards = [3]int{2, 1, 4}

// Guards asks containerd for its version, and returns how its plug-in treats guards. A version that
// cannot be read is taken for one beside whose guards the plug-in does not start.
func (a *Adoption) Guards(ctx context.Context) (Guards, error) {
	v, err := a.client.Version(asking(ctx))
	if err != nil {
		return "", fmt.Errorf("ask for containerd's version: %w", connection.Native(err))
	}
	return guardsOf(v.Version), nil
}

func guardsOf(version string) Guards {
	switch v, ok := numbersOf(version); {
	case !ok:
		return GuardsFatal
	case v[0] < 2:
		return GuardsLeft
	case slices.Compare(v[:], removesGuards[:]) < 0:
		return GuardsFatal
	}
	return GuardsRemoved
}

// Unguard removes the object that Guard made. An object that berth owns by now stays.
func (a *Adoption) Unguard(ctx context.Context, id string) error {
	ctx = asking(ctx)
	s, err := a.client.SandboxStore().Get(ctx, id)
	if err == nil && s.Labels[labelGuard] == a.owner && s.Labels[connection.LabelOwner] == "" {
		err = a.client.SandboxStore().Delete(ctx, id)
	}
	if err = connection.Native(err); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove the guard of the task of %s: %w", id, err)
	}
	return nil
}

// Guarded lists the IDs of guards that have not been removed, by this call or an earlier one that
// was cut off. The containers themselves may be gone.
func (a *Adoption) Guarded(ctx context.Context) (ids []string, err error) {
	left, err := a.client.SandboxStore().List(asking(ctx), fmt.Sprintf("labels.%q==%q", labelGuard, a.owner))
	if err != nil {
		return nil, fmt.Errorf("look for guards that are left: %w", connection.Native(err))
	}
	for _, s := range left {
		ids = append(ids, s.ID)
	}
	return ids, nil
}

// Sweep removes guards of containers that are gone.
func (a *Adoption) Sweep(ctx context.Context) error {
	ctx = asking(ctx)
	left, err := a.Guarded(ctx)
	if err != nil {
		return err
	}
	for _, id := range left {
		_, err := a.client.ContainerService().Get(ctx, id)
		if err = connection.Native(err); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("look for guards that are left: %w", err)
		}
		if err == nil {
			continue
		}
		if err := a.Unguard(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// TakeOver makes a sandbox or a container berth's: its objects carry berth's label, and the plug-in
// does not find its metadata. It can be cut off and called again.
func (a *Adoption) TakeOver(ctx context.Context, id string, isSandbox bool) error {
	ctx = asking(ctx)
	if err := a.changeContainer(ctx, id, func(c *containers.Container) {
		c.Labels[connection.LabelOwner] = a.owner
		move(c.Extensions, extensionOf(isSandbox), adoptedExtension)
	}); err != nil {
		return fmt.Errorf("take over %s: %w", id, err)
	}
	old, err := a.sandboxObject(ctx, id)
	switch {
	case err != nil:
	case old == nil: // it is of containerd 1.7, or was not guarded
		err = a.makeSandbox(ctx, id, func(s *sandbox.Sandbox) { s.Labels[connection.LabelOwner] = a.owner })
	case !holds(old.Extensions, storeExtension):
		s := *old
		s.Labels = map[string]string{connection.LabelOwner: a.owner}
		_, err = a.client.SandboxStore().Update(ctx, s, "labels")
	default: // an extension can be replaced and not removed, so the object is
		if err = a.client.SandboxStore().Delete(ctx, id); err == nil {
			err = a.makeSandbox(ctx, id, func(s *sandbox.Sandbox) { s.Labels[connection.LabelOwner] = a.owner })
		}
	}
	if err != nil {
		return fmt.Errorf("take over the sandbox object %s: %w", id, connection.Native(err))
	}
	return nil
}

// HandOver makes a sandbox the plug-in's again. name is the plug-in's name for it. It can be cut
// off and called again.
func (a *Adoption) HandOver(ctx context.Context, id, name string) error {
	ctx = asking(ctx)
	old, err := a.sandboxObject(ctx, id)
	if err == nil && old != nil && !holds(old.Extensions, storeExtension) {
		err = a.client.SandboxStore().Delete(ctx, id)
	}
	if err == nil && (old == nil || !holds(old.Extensions, storeExtension)) {
		err = a.restoreSandbox(ctx, id, name)
	}
	if err != nil {
		return fmt.Errorf("hand over the sandbox object %s: %w", id, connection.Native(err))
	}
	return a.handOver(ctx, id, true)
}

// HandOverContainer makes a container the plug-in's again. Its sandbox object, which the plug-in
// has none of, becomes a guard of its task if guard is set. It can be cut off and called again.
func (a *Adoption) HandOverContainer(ctx context.Context, id string, guard bool) error {
	ctx = asking(ctx)
	old, err := a.sandboxObject(ctx, id)
	switch {
	case err != nil:
	case !guard && old != nil:
		err = a.client.SandboxStore().Delete(ctx, id)
	case guard && old == nil:
		err = a.Guard(ctx, id)
	case guard:
		s := *old
		s.Labels = map[string]string{labelGuard: a.owner}
		_, err = a.client.SandboxStore().Update(ctx, s, "labels")
	}
	if err != nil {
		return fmt.Errorf("hand over the sandbox object %s: %w", id, connection.Native(err))
	}
	return a.handOver(ctx, id, false)
}

// handOver makes a container object the plug-in's.
func (a *Adoption) handOver(ctx context.Context, id string, isSandbox bool) error {
	if err := a.changeContainer(ctx, id, func(c *containers.Container) {
		delete(c.Labels, connection.LabelOwner)
		move(c.Extensions, adoptedExtension, extensionOf(isSandbox))
	}); err != nil {
		return fmt.Errorf("hand over %s: %w", id, err)
	}
	return nil
}

// restoreSandbox makes the sandbox object of a pod as the plug-in of containerd 2 has it. The
// plug-in of 1.7 has none, and passes over it.
func (a *Adoption) restoreSandbox(ctx context.Context, id, name string) error {
	c, err := a.client.ContainerService().Get(ctx, id)
	if err != nil {
		return err
	}
	return a.makeSandbox(ctx, id, func(s *sandbox.Sandbox) {
		s.Sandboxer, s.Spec = podSandbox, c.Spec
		s.Labels["name"] = name
		s.Extensions = map[string]typeurl.Any{}
		for _, key := range []string{sandboxExtension, adoptedExtension} {
			if holds(c.Extensions, key) {
				s.Extensions[storeExtension] = c.Extensions[key]
			}
		}
	})
}

// sandboxObject returns the sandbox object of an ID; nil: there is none.
func (a *Adoption) sandboxObject(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	s, err := a.client.SandboxStore().Get(ctx, id)
	if err = connection.Native(err); err != nil {
		if errdefs.IsNotFound(err) {
			return nil, nil
		}
		return nil, err
	}
	return &s, nil
}

// makeSandbox makes a sandbox object for a container object, as complete makes it. One that is
// there stays.
func (a *Adoption) makeSandbox(ctx context.Context, id string, complete func(*sandbox.Sandbox)) error {
	c, err := a.client.ContainerService().Get(ctx, id)
	if err != nil {
		return connection.Native(err)
	}
	now := time.Now().UTC()
	s := sandbox.Sandbox{
		ID:        id,
		Runtime:   sandbox.RuntimeOpts{Name: c.Runtime.Name, Options: c.Runtime.Options},
		Sandboxer: connection.OwnSandboxer,
		Labels:    map[string]string{},
		CreatedAt: now,
		UpdatedAt: now,
	}
	complete(&s)
	_, err = a.client.SandboxStore().Create(ctx, s)
	if err = connection.Native(err); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func extensionOf(isSandbox bool) string {
	if isSandbox {
		return sandboxExtension
	}
	return containerExtension
}

// changeContainer changes the labels and extensions of a container object, both at once.
func (a *Adoption) changeContainer(ctx context.Context, id string, change func(*containers.Container)) error {
	c, err := a.client.ContainerService().Get(ctx, id)
	if err == nil {
		c.Labels, c.Extensions = maps.Clone(c.Labels), maps.Clone(c.Extensions)
		change(&c)
		_, err = a.client.ContainerService().Update(ctx, c, "labels", "extensions")
	}
	return connection.Native(err)
}

// emptied is the type of the remains of a moved extension, because containerd replaces an extension
// but does not remove one. The plug-in does not know the type, and passes over the object.
const emptied = "berth/adopted"

// holds reports whether something is under a key.
func holds(extensions map[string]typeurl.Any, key string) bool {
	e, ok := extensions[key]
	return ok && e.GetTypeUrl() != emptied
}

// move moves the value under a key to another. It does nothing if it was moved before.
func move(extensions map[string]typeurl.Any, from, to string) {
	if holds(extensions, from) {
		extensions[to], extensions[from] = extensions[from], &anypb.Any{TypeUrl: emptied}
	}
}
