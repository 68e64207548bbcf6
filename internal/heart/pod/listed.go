// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"io"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/exit"
	"berth/internal/base/ops"
	"berth/internal/heart/state"
	"berth/internal/host/network"
	"berth/internal/host/pins"
)

// listed returns ports whose calls are in the list of what is under way, each as a part of the call
// or step that makes it. The controller has no other ports, so nothing outside can be asked beside
// the list. archtest compares the methods with those of ports.go.
func (p Ports) listed() Ports {
	p.Runtime = listedRuntime{p.Runtime}
	p.Network = listedNetwork{p.Network}
	p.NetNS = listedNetNS{p.NetNS}
	p.Files = listedFiles{p.Files}
	p.Images = listedImages{p.Images}
	p.Store = listedStore{p.Store, p.Ops}
	if p.Policy != nil {
		p.Policy = listedPolicy{p.Policy}
	}
	if p.Checkpoints != nil {
		p.Checkpoints = listedCheckpoints{p.Checkpoints}
	}
	if p.Hooks != nil {
		p.Hooks = listedHooks{p.Hooks}
	}
	return p
}

// asked runs a call of another program.
func asked(ctx context.Context, kind ops.Kind, what string, call func(ctx context.Context) error) error {
	ctx, op := ops.Begin(ctx, ops.Work{Kind: kind, What: what})
	defer op.End()
	return op.Failed(call(ctx))
}

// answer is asked for a call that returns a value.
func answer[T any](ctx context.Context, kind ops.Kind, what string, call func(ctx context.Context) (T, error)) (v T, err error) {
	err = asked(ctx, kind, what, func(ctx context.Context) error {
		v, err = call(ctx)
		return err
	})
	return v, err
}

// listedRuntime lists calls of containerd and of shims. Questions for a state are not listed: an
// attempt of a lane bounds them, and names them in its error.
type listedRuntime struct{ Runtime }

func (r listedRuntime) CreateSandbox(ctx context.Context, id string, h Handler) error {
	return asked(ctx, ops.Containerd, "containerd (CreateSandbox)", func(ctx context.Context) error { return r.Runtime.CreateSandbox(ctx, id, h) })
}

func (r listedRuntime) DeleteSandbox(ctx context.Context, id string) error {
	return asked(ctx, ops.Containerd, "containerd (DeleteSandbox)", func(ctx context.Context) error { return r.Runtime.DeleteSandbox(ctx, id) })
}

func (r listedRuntime) CreateContainer(ctx context.Context, o Object) error {
	return asked(ctx, ops.Containerd, "containerd (CreateContainer)", func(ctx context.Context) error { return r.Runtime.CreateContainer(ctx, o) })
}

func (r listedRuntime) DeleteContainer(ctx context.Context, id string) error {
	return asked(ctx, ops.Containerd, "containerd (DeleteContainer)", func(ctx context.Context) error { return r.Runtime.DeleteContainer(ctx, id) })
}

func (r listedRuntime) Spec(ctx context.Context, id string) (*specs.Spec, error) {
	return answer(ctx, ops.Containerd, "containerd (GetContainer)", func(ctx context.Context) (*specs.Spec, error) { return r.Runtime.Spec(ctx, id) })
}

func (r listedRuntime) UpdateSpec(ctx context.Context, id string, s *specs.Spec) error {
	return asked(ctx, ops.Containerd, "containerd (UpdateContainer)", func(ctx context.Context) error { return r.Runtime.UpdateSpec(ctx, id, s) })
}

func (r listedRuntime) PrepareSnapshot(ctx context.Context, l Layer) error {
	return asked(ctx, ops.Plugin, snapshotter(l.Snapshotter, "Prepare"), func(ctx context.Context) error { return r.Runtime.PrepareSnapshot(ctx, l) })
}

func (r listedRuntime) DeleteSnapshot(ctx context.Context, name, key string) error {
	return asked(ctx, ops.Plugin, snapshotter(name, "Remove"), func(ctx context.Context) error { return r.Runtime.DeleteSnapshot(ctx, name, key) })
}

func (r listedRuntime) DeleteLease(ctx context.Context, id string) error {
	return asked(ctx, ops.Containerd, "containerd (DeleteLease)", func(ctx context.Context) error { return r.Runtime.DeleteLease(ctx, id) })
}

func (r listedRuntime) RenewSnapshot(ctx context.Context, name, key, spare string) error {
	return asked(ctx, ops.Plugin, snapshotter(name, "Prepare"), func(ctx context.Context) error {
		return r.Runtime.RenewSnapshot(ctx, name, key, spare)
	})
}

func (r listedRuntime) ApplyChanges(ctx context.Context, name, key, changes string) error {
	return asked(ctx, ops.Wait, "the files of the checkpoint to be written", func(ctx context.Context) error {
		return r.Runtime.ApplyChanges(ctx, name, key, changes)
	})
}

func (r listedRuntime) MountImage(ctx context.Context, v ImageView) error {
	return asked(ctx, ops.Plugin, snapshotter(v.Snapshotter, "View"), func(ctx context.Context) error { return r.Runtime.MountImage(ctx, v) })
}

func (r listedRuntime) CreateTask(ctx context.Context, q TaskRequest) (uint32, error) {
	return answer(ctx, ops.Shim, "the shim (Create)", func(ctx context.Context) (uint32, error) { return r.Runtime.CreateTask(ctx, q) })
}

func (r listedRuntime) StartTask(ctx context.Context, id string) error {
	return asked(ctx, ops.Shim, "the shim (Start)", func(ctx context.Context) error { return r.Runtime.StartTask(ctx, id) })
}

func (r listedRuntime) RestoreTask(ctx context.Context, id, work string) error {
	return asked(ctx, ops.Shim, "the shim (Start, which restores the checkpoint)", func(ctx context.Context) error {
		return r.Runtime.RestoreTask(ctx, id, work)
	})
}

func (r listedRuntime) KillTask(ctx context.Context, id string, sig unix.Signal) error {
	return asked(ctx, ops.Shim, "the shim (Kill)", func(ctx context.Context) error { return r.Runtime.KillTask(ctx, id, sig) })
}

func (r listedRuntime) DeleteTask(ctx context.Context, id string) error {
	return asked(ctx, ops.Shim, "the shim (Delete)", func(ctx context.Context) error { return r.Runtime.DeleteTask(ctx, id) })
}

func (r listedRuntime) EndLeft(ctx context.Context, id string) error {
	return asked(ctx, ops.Wait, "the end of what a start has left", func(ctx context.Context) error { return r.Runtime.EndLeft(ctx, id) })
}

func (r listedRuntime) UpdateTask(ctx context.Context, id string, res *specs.LinuxResources) error {
	return asked(ctx, ops.Shim, "the shim (Update)", func(ctx context.Context) error { return r.Runtime.UpdateTask(ctx, id, res) })
}

func (r listedRuntime) StartShim(ctx context.Context, q SandboxRequest) error {
	return asked(ctx, ops.Shim, "the shim of the pod, which is started,", func(ctx context.Context) error { return r.Runtime.StartShim(ctx, q) })
}

func (r listedRuntime) EndShim(ctx context.Context, id string) error {
	return asked(ctx, ops.Shim, "the shim (Shutdown)", func(ctx context.Context) error { return r.Runtime.EndShim(ctx, id) })
}

func (r listedRuntime) Hangs(ctx context.Context, id string) bool {
	ctx, op := ops.Begin(ctx, ops.Work{Kind: ops.Shim, What: "the shim (SandboxStatus)"})
	defer op.End()
	return r.Runtime.Hangs(ctx, id)
}

// snapshotter names a call of a snapshotter.
func snapshotter(name, call string) string { return "the snapshotter " + name + " (" + call + ")" }

// listedNetwork lists the calls of CNI plug-ins. The room network names the plug-in.
type listedNetwork struct{ Network }

func (n listedNetwork) Setup(ctx context.Context, p network.Pod) (network.Result, error) {
	return answer(ctx, ops.Wait, "the network (CNI ADD)", func(ctx context.Context) (network.Result, error) { return n.Network.Setup(ctx, p) })
}

func (n listedNetwork) Teardown(ctx context.Context, p network.Pod, recorded network.Result) error {
	return asked(ctx, ops.Wait, "the network (CNI DEL)", func(ctx context.Context) error { return n.Network.Teardown(ctx, p, recorded) })
}

// Sandboxer returns a sandbox controller of containerd's, whose calls are listed.
func (r listedRuntime) Sandboxer(name string) Sandboxer {
	return listedSandboxer{r.Runtime.Sandboxer(name), "the sandbox controller " + name}
}

type listedSandboxer struct {
	Sandboxer
	name string
}

func (s listedSandboxer) Create(ctx context.Context, q SandboxRequest) (Instance, error) {
	return answer(ctx, ops.Shim, s.name+" (Create)", func(ctx context.Context) (Instance, error) { return s.Sandboxer.Create(ctx, q) })
}

func (s listedSandboxer) Start(ctx context.Context, id string) (Instance, error) {
	return answer(ctx, ops.Shim, s.name+" (Start)", func(ctx context.Context) (Instance, error) { return s.Sandboxer.Start(ctx, id) })
}

func (s listedSandboxer) Stop(ctx context.Context, id string, timeout time.Duration) error {
	return asked(ctx, ops.Shim, s.name+" (Stop)", func(ctx context.Context) error { return s.Sandboxer.Stop(ctx, id, timeout) })
}

func (s listedSandboxer) Shutdown(ctx context.Context, id string) error {
	return asked(ctx, ops.Shim, s.name+" (Shutdown)", func(ctx context.Context) error { return s.Sandboxer.Shutdown(ctx, id) })
}

type listedNetNS struct{ NetNS }

func (n listedNetNS) Create(ctx context.Context, path string) error {
	return asked(ctx, ops.Wait, "its network namespace", func(ctx context.Context) error { return n.NetNS.Create(ctx, path) })
}

func (n listedNetNS) CreateOwned(ctx context.Context, path string, ids pins.UserIDs) error {
	return asked(ctx, ops.Wait, "its network namespace", func(ctx context.Context) error { return n.NetNS.CreateOwned(ctx, path, ids) })
}

func (n listedNetNS) Remove(ctx context.Context, path string) error {
	return asked(ctx, ops.Wait, "the removal of its network namespace", func(ctx context.Context) error { return n.NetNS.Remove(ctx, path) })
}

func (n listedNetNS) RemoveAdopted(ctx context.Context, path string) error {
	return asked(ctx, ops.Wait, "the removal of its network namespace", func(ctx context.Context) error { return n.NetNS.RemoveAdopted(ctx, path) })
}

type listedFiles struct{ Files }

func (f listedFiles) MakeHostPath(ctx context.Context, path string) error {
	return asked(ctx, ops.Disk, "the file system of the host_path "+path, func(ctx context.Context) error { return f.Files.MakeHostPath(ctx, path) })
}

type listedImages struct{ Images }

func (i listedImages) Pull(ctx context.Context, ref string) (Image, error) {
	return answer(ctx, ops.Wait, "the image "+ref+" to be pulled", func(ctx context.Context) (Image, error) { return i.Images.Pull(ctx, ref) })
}

func (i listedImages) PullFor(ctx context.Context, pod *runtimeapi.PodSandboxMetadata, ref string) (Image, error) {
	return answer(ctx, ops.Wait, "the image "+ref+" to be pulled", func(ctx context.Context) (Image, error) { return i.Images.PullFor(ctx, pod, ref) })
}

func (i listedImages) Files(ctx context.Context, img Image) (passwd, group []byte, err error) {
	err = asked(ctx, ops.Disk, "the image's disk (/etc/passwd)", func(ctx context.Context) error {
		passwd, group, err = i.Images.Files(ctx, img)
		return err
	})
	return passwd, group, err
}

func (i listedImages) Unpack(ctx context.Context, img Image) error {
	return asked(ctx, ops.Wait, "the layers of its image to be unpacked", func(ctx context.Context) error { return i.Images.Unpack(ctx, img) })
}

func (i listedImages) CopyOut(ctx context.Context, img Image, dirs map[string]string) error {
	return asked(ctx, ops.Wait, "the volumes of its image to be copied", func(ctx context.Context) error { return i.Images.CopyOut(ctx, img, dirs) })
}

func (i listedImages) Checkpoint(ctx context.Context, img Image) (io.ReadCloser, error) {
	return answer(ctx, ops.Disk, "the disk of the checkpoint", func(ctx context.Context) (io.ReadCloser, error) { return i.Images.Checkpoint(ctx, img) })
}

// listedPolicy lists the questions for signatures, which may ask a registry or a verifier.
type listedPolicy struct{ Policy }

func (p listedPolicy) Allow(ctx context.Context, namespace, ref string, img Image) error {
	return asked(ctx, ops.Wait, "the policy's verdict on its image", func(ctx context.Context) error { return p.Policy.Allow(ctx, namespace, ref, img) })
}

func (p listedPolicy) Restore(ctx context.Context, namespace, ref string, img Image) error {
	return asked(ctx, ops.Wait, "the policy's verdict on its checkpoint", func(ctx context.Context) error { return p.Policy.Restore(ctx, namespace, ref, img) })
}

type listedCheckpoints struct{ Checkpoints }

func (c listedCheckpoints) Receive(ctx context.Context, from io.Reader) (archive string, done func(), err error) {
	err = asked(ctx, ops.Disk, "the disk of the checkpoint", func(ctx context.Context) error {
		archive, done, err = c.Checkpoints.Receive(ctx, from)
		return err
	})
	return archive, done, err
}

func (c listedCheckpoints) Read(ctx context.Context, archive string) (Checkpoint, error) {
	return answer(ctx, ops.Disk, "the disk of the checkpoint "+archive, func(ctx context.Context) (Checkpoint, error) { return c.Checkpoints.Read(ctx, archive) })
}

func (c listedCheckpoints) Unpack(ctx context.Context, archive, dir string, s *specs.Spec) error {
	return asked(ctx, ops.Wait, "the checkpoint to be unpacked", func(ctx context.Context) error { return c.Checkpoints.Unpack(ctx, archive, dir, s) })
}

// listedHooks lists the calls of the extensions. The room nri names the plug-in.
type listedHooks struct{ Hooks }

func (h listedHooks) AdjustSpec(ctx context.Context, t Target, config *runtimeapi.ContainerConfig, s *specs.Spec) error {
	return asked(ctx, ops.Wait, "the NRI plug-ins (CreateContainer)", func(ctx context.Context) error { return h.Hooks.AdjustSpec(ctx, t, config, s) })
}

func (h listedHooks) SandboxRun(ctx context.Context, t Target) error {
	return asked(ctx, ops.Wait, "the NRI plug-ins (RunPodSandbox)", func(ctx context.Context) error { return h.Hooks.SandboxRun(ctx, t) })
}

func (h listedHooks) Starting(ctx context.Context, t Target) error {
	return asked(ctx, ops.Wait, "the NRI plug-ins (StartContainer)", func(ctx context.Context) error { return h.Hooks.Starting(ctx, t) })
}

func (h listedHooks) Ended(ctx context.Context, t Target, f exit.Fact) error {
	return asked(ctx, ops.Wait, "the NRI plug-ins (StopContainer)", func(ctx context.Context) error { return h.Hooks.Ended(ctx, t, f) })
}

// listedStore lists commits. A commit has no context, so that it is not a part of its call: the
// object is the same.
type listedStore struct {
	Store
	list *ops.List
}

func (s listedStore) Commit(changes ...state.Change) error {
	w := ops.Work{Kind: ops.Disk, What: "the disk of the records"}
	if len(changes) > 0 {
		w.Of.ID = changes[0].ID()
	}
	_, op := s.list.Begin(context.Background(), w)
	defer op.End()
	return op.Failed(s.Store.Commit(changes...))
}
