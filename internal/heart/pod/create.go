// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// creator makes containers, up to CREATED.
type creator struct {
	objects     Objects
	layers      Layers
	images      Images
	policy      Policy      // nil for none
	checkpoints Checkpoints // nil for none
	files       Files
	store       Store
	devices     Devices // nil for none
	hooks       Hooks   // nil for none
	make        units
	units       *registry
	specs       *specBuilder
	userns      *userNamespaces
	volumes     *imageVolumes
	teardown    *teardown
	publisher   *publisher
	obs         Observer
}

// create makes a container and returns once it is CREATED. If it fails, everything it made is
// undone.
func (c *creator) create(ctx context.Context, id string, p *unit, config *runtimeapi.ContainerConfig) error {
	began := time.Now()
	from, volumes, err := c.sources(ctx, p, config)
	if err != nil {
		return c.refuse(id, p, config, err)
	}
	defer from.done()
	u, err := c.plan(id, p, config, from, volumes)
	if err != nil {
		return c.refuse(id, p, config, err)
	}
	ctx, done := u.interruptible(ctx)
	defer done()
	// u is not shared yet. A removal of the pod may find it from here on, and changes it only once
	// its record is there.
	_, _ = u.task.tryLock(), u.changing.tryLock()
	if !c.units.add(u) {
		return fmt.Errorf("sandbox %s is removed: %w", p.id, errdefs.ErrNotFound)
	}
	err = p.mustBeReady() // once more: a stop that began before u was added does not know of u
	if err == nil {
		err = c.store.Commit(state.NewContainer(*u.container, *u.now()))
	}
	u.erased.Store(err != nil)
	u.changing.unlock()
	if err != nil {
		c.units.drop(u)
		u.task.unlock()
		u.removed.Happen()
		return err
	}
	err = interrupted(ctx, guard(func() error { return c.makeContainer(ctx, u, from) }))
	u.task.unlock()
	if err != nil {
		c.obs.Note(id, event.ContainerNotMade{Names: u.names(), Err: err.Error()})
		return errors.Join(err, c.teardown.undo(ctx, u, err))
	}
	c.obs.Note(id, event.ContainerCreated{
		Names:   u.names(),
		By:      event.ClientOf(ctx),
		Profile: spec.PulledProfile(u.container.Config.GetLinux().GetSecurityContext().GetSeccomp()),
		Took:    time.Since(began),
	})
	if c.hooks != nil {
		c.hooks.Created(ctx, targetOf(u))
	}
	c.publisher.publish(u, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return nil
}

// sources finds and checks the image or checkpoint that a container of the sandbox p is made from.
// The caller calls done of the source, unless there is an error.
func (c *creator) sources(ctx context.Context, p *unit, config *runtimeapi.ContainerConfig) (from source, _ []state.ImageVolume, err error) {
	// Its handler could make the pod, unless another runtime has made it, which shifts owners by
	// itself.
	if err := c.userns.check(ctx, p.sandbox.Config, p.handler); err != nil {
		return from, nil, fmt.Errorf("sandbox %s has a user namespace: %w", p.id, err)
	}
	if from, err = c.sourceOf(ctx, p, config); err != nil {
		return from, nil, err
	}
	defer func() {
		if err != nil {
			from.done()
		}
	}()
	img := from.image
	if err := spec.CheckImage(img.Config); err != nil {
		return from, nil, fmt.Errorf("image %s: %w", imageRef(config), err)
	}
	img.Snapshotter = cmp.Or(p.handler.Snapshotter, img.Snapshotter)
	from.image = img
	volumes, mounted, err := c.volumes.plan(config, p.handler)
	if err == nil {
		err = c.allowed(ctx, p, config, from, mounted)
	}
	return from, volumes, err
}

// notAllowed is the policy's refusal of an image, which is an event of its own.
type notAllowed struct{ error }

func (e notAllowed) Unwrap() error { return e.error }

// refuse notes that a container of the sandbox p is not made, and returns the error. It has no
// record.
func (c *creator) refuse(id string, p *unit, config *runtimeapi.ContainerConfig, why error) error {
	if !errors.As(why, new(notAllowed)) {
		c.obs.Note(id, event.ContainerNotMade{Names: namesOfContainer(p, config), Err: why.Error()})
	}
	return why
}

// allowed asks the policy about the images that a container of the sandbox p is made from and
// mounts, the latter by the index of the mount. A refusal goes to the timeline of the pod, because
// there is no container yet.
func (c *creator) allowed(ctx context.Context, p *unit, config *runtimeapi.ContainerConfig, from source, mounted map[int]Image) error {
	if c.policy == nil {
		return nil
	}
	asked := cmp.Or(config.GetImage().GetUserSpecifiedImage(), imageRef(config))
	if from.checkpoint != nil {
		asked = "" // the pod asked for the checkpoint
	}
	namespace := p.sandbox.Config.GetMetadata().GetNamespace()
	err := c.policy.Allow(ctx, namespace, asked, from.image)
	for _, at := range slices.Sorted(maps.Keys(mounted)) {
		if err != nil {
			break
		}
		m := config.GetMounts()[at]
		asked := cmp.Or(m.GetImage().GetUserSpecifiedImage(), m.GetImage().GetImage())
		if err = c.policy.Allow(ctx, namespace, asked, mounted[at]); err != nil {
			err = mountFailed(m, err)
		}
	}
	if err != nil {
		c.obs.Note(p.id, event.ImageRefused{Container: config.GetMetadata().GetName(), Err: err.Error()})
		return notAllowed{err}
	}
	return nil
}

// source is the origin of a container: an image, or a checkpoint and the image that the checkpoint
// names.
type source struct {
	image      Image
	checkpoint *state.Checkpoint // nil for an image alone
	archive    string            // of the checkpoint, as a path until done is called
	done       func()
}

// sourceOf finds the source of a new container of the sandbox p. A reference that is an absolute
// path names the archive of a checkpoint, whose image is pulled if it is not on this node. So does
// one that names an image which holds a checkpoint, if a rule of the policy lets it be restored.
// The caller calls done, unless there is an error.
func (c *creator) sourceOf(ctx context.Context, p *unit, config *runtimeapi.ContainerConfig) (source, error) {
	ref := imageRef(config)
	from := source{archive: ref, done: func() {}}
	if !filepath.IsAbs(ref) {
		img, err := c.images.Resolve(ref)
		// A kubelet names an image by its ID. The policy judges the name that the user gave, and
		// not the name under which the image was first pulled, as long as both are the same image.
		if user := config.GetImage().GetUserSpecifiedImage(); err == nil && user != "" && user != ref {
			if named, err := c.images.Resolve(user); err == nil && named.ID == img.ID {
				img = named
			}
		}
		if err == nil {
			err = mayRun(img, ref)
		}
		if err != nil || !img.Checkpoint {
			return source{image: img, done: func() {}}, err
		}
		from, err = c.receive(ctx, p, config, img)
		if err != nil {
			return source{}, err
		}
	} else if err := c.mayRestore(p); err != nil {
		return source{}, fmt.Errorf("restore from %s: %w", ref, err)
	}
	said, err := c.checkpoints.Read(ctx, from.archive)
	if err != nil {
		from.done()
		if from.archive != ref {
			err = fmt.Errorf("image %s: %w", ref, err)
		}
		return source{}, err
	}
	if from.image, err = c.imageOf(ctx, p.sandbox.Config.GetMetadata(), said); err != nil {
		from.done()
		return source{}, fmt.Errorf("image of checkpoint %s: %w", ref, err)
	}
	from.checkpoint = &state.Checkpoint{
		Archive: ref,
		Image:   cmp.Or(said.Image, said.ImageRef),
	}
	return from, nil
}

// receive writes the checkpoint in an image to an archive on this node, which exists until done is
// called.
func (c *creator) receive(ctx context.Context, p *unit, config *runtimeapi.ContainerConfig, img Image) (from source, err error) {
	ref := imageRef(config)
	if err := c.mayRestore(p); err != nil {
		return from, fmt.Errorf("restore from image %s: %w", ref, err)
	}
	if c.policy == nil {
		return from, fmt.Errorf("image %s: it holds a checkpoint, and this berth has no policy that lets one be restored: %w", ref, errdefs.ErrPermissionDenied)
	}
	asked := cmp.Or(config.GetImage().GetUserSpecifiedImage(), ref)
	if err := c.policy.Restore(ctx, p.sandbox.Config.GetMetadata().GetNamespace(), asked, img); err != nil {
		c.obs.Note(p.id, event.ImageRefused{Container: config.GetMetadata().GetName(), Err: err.Error()})
		return from, notAllowed{err}
	}
	r, err := c.images.Checkpoint(ctx, img)
	if err != nil {
		return from, fmt.Errorf("checkpoint in image %s: %w", ref, err)
	}
	from.archive, from.done, err = c.checkpoints.Receive(ctx, r)
	if err = errors.Join(err, r.Close()); err != nil {
		if from.done != nil {
			from.done()
		}
		return from, fmt.Errorf("checkpoint in image %s: %w", ref, err)
	}
	return from, nil
}

// mayRestore returns why no container of the sandbox p can be restored.
func (c *creator) mayRestore(p *unit) error {
	_, mapped := spec.UserNamespace(p.sandbox.Config)
	switch {
	case c.checkpoints == nil:
		return fmt.Errorf("this berth does not restore containers: %w", errdefs.ErrNotImplemented)
	case !p.handler.HostProcess || p.handler.Options != "" && p.handler.Options != OptionsRunc:
		return fmt.Errorf("the runtime handler %q of sandbox %s is not runc's, which restores with CRIU: %w", p.handler.Name, p.id, errdefs.ErrFailedPrecondition)
	case mapped:
		return fmt.Errorf("sandbox %s has a user namespace of its own, and berth does not restore into one: %w", p.id, errdefs.ErrNotImplemented)
	}
	return nil
}

// imageOf returns the image that a checkpoint was made with: the very same, also if its name has
// moved on to another one since.
func (c *creator) imageOf(ctx context.Context, pod *runtimeapi.PodSandboxMetadata, said Checkpoint) (Image, error) {
	exact := cmp.Or(said.ImageRef, said.Image)
	img, err := c.images.Resolve(exact)
	if errdefs.IsNotFound(err) {
		from := said.Image
		if from == "" || strings.Contains(exact, "@") {
			from = exact // by its digest
		}
		if img, err = c.images.PullFor(ctx, pod, from); err != nil {
			return img, err
		}
		if exact != said.Image { // its full reference is known, not only the name
			img, err = c.images.Resolve(exact)
		}
		if errdefs.IsNotFound(err) {
			return img, fmt.Errorf("%s was pulled, and is not %s, which the checkpoint was made with: %w", from, exact, errdefs.ErrFailedPrecondition)
		}
	}
	if err == nil && img.Checkpoint {
		err = fmt.Errorf("%s holds a checkpoint itself: %w", exact, errdefs.ErrInvalidArgument)
	}
	if err == nil {
		err = mayRun(img, exact)
	}
	return img, err
}

// mayRun refuses an image that cannot be run.
func mayRun(img Image, ref string) error {
	if img.Artifact {
		return fmt.Errorf("image %s: it is an OCI artifact, which a container can mount as a volume and not run: %w", ref, errdefs.ErrInvalidArgument)
	}
	return nil
}

// plan makes the unit of a container that is about to be made, with all that it may come to hold.
func (c *creator) plan(id string, p *unit, config *runtimeapi.ContainerConfig, from source, volumes []state.ImageVolume) (*unit, error) {
	logPath, err := logPath(p, config)
	if err != nil {
		return nil, err
	}
	now, img := c.make.clock.Next(), from.image
	holds := state.HoldTask | state.HoldIO | state.HoldContainer | state.HoldSnapshot | state.HoldSandbox | state.HoldFiles
	if len(volumes) > 0 {
		holds |= state.HoldViews
	}
	u := c.make.container(state.Container{
		ID:           id,
		PodID:        p.id,
		Handler:      p.handler.Name,
		ImageID:      img.ID,
		ImageRef:     img.Ref,
		Snapshotter:  img.Snapshotter,
		LogPath:      logPath,
		CreatedAt:    now,
		Config:       config,
		StopSignal:   stopSignal(config, img),
		ImageVolumes: volumes,
		Checkpoint:   from.checkpoint,
	}, state.Status{
		Phase:     state.Creating,
		CreatedAt: now,
		Holds:     holds,
	}, p)
	u.compared.Happen()
	return u, nil
}

// makeContainer makes everything outside that the container consists of, and ends with it CREATED.
func (c *creator) makeContainer(ctx context.Context, u *unit, from source) error {
	img := from.image
	made, err := c.specs.container(ctx, u, img)
	if err != nil {
		return err
	}
	if err := injectDevices(c.devices, u, made); err != nil {
		return err
	}
	if c.hooks != nil {
		if err := c.hooks.AdjustSpec(ctx, targetOf(u), u.container.Config, made); err != nil {
			return fmt.Errorf("adjust spec: %w", err)
		}
	}
	if err := c.unpack(ctx, u, from, made); err != nil {
		return err
	}
	u.setLabel(made.Process.SelinuxLabel)
	if err := c.prepareSnapshot(ctx, u, img); err != nil {
		return err
	}
	own := u.handler
	own.Sandboxer = "" // the object is berth's own, and no sandbox controller of containerd's knows it
	if err := c.objects.CreateSandbox(ctx, u.id, own); err != nil {
		return err
	}
	if err := c.objects.CreateContainer(ctx, Object{
		ID:          u.id,
		SandboxID:   u.pod.id,
		Image:       u.imageName(),
		Handler:     u.handler,
		Spec:        made,
		Snapshotter: img.Snapshotter,
		SnapshotKey: u.id,
		Labels:      spec.ObjectLabels(u.container.Config.GetLabels(), spec.KindContainer),
	}); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // interrupted when everything was made already
	}
	removing := false
	err = u.change(func(st *state.Status) bool {
		removing = st.Removing
		st.Phase, st.SELinuxLabel, st.Applied = state.Created, u.label(), appliedOf(made)
		return !removing
	})
	if removing {
		return errRemoved
	}
	return err
}

// unpack unpacks the checkpoint that u is restored from, if it is, and changes the specification as
// the restore needs it. Its mounts are those of the request, and not those of the checkpoint.
func (c *creator) unpack(ctx context.Context, u *unit, from source, s *oci.Spec) error {
	if from.checkpoint == nil {
		return nil
	}
	dir, err := c.files.MakeCheckpoint(u.id)
	if err != nil {
		return err
	}
	return c.checkpoints.Unpack(ctx, from.archive, dir, s)
}

// injectDevices adds the CDI devices that u asks for to its specification. devices may be nil.
func injectDevices(devices Devices, u *unit, s *oci.Spec) error {
	names, err := spec.CDIDevices(u.container.Config)
	if err != nil || len(names) == 0 {
		return err
	}
	if devices == nil {
		return fmt.Errorf("CDI_devices: this berth does not have CDI devices: %w", errdefs.ErrNotImplemented)
	}
	return devices.Inject(s, names)
}

// prepareSnapshot makes the writable layer of u, and unpacks the image first if it is on this node
// without its snapshots.
func (c *creator) prepareSnapshot(ctx context.Context, u *unit, img Image) error {
	layer := Layer{Snapshotter: img.Snapshotter, Key: u.id, ChainID: img.ChainID}
	layer.IDs, _ = spec.UserNamespace(u.pod.sandbox.Config)
	err := c.layers.PrepareSnapshot(ctx, layer)
	if !errdefs.IsNotFound(err) {
		return err
	}
	if err := c.images.Unpack(ctx, img); err != nil {
		return err
	}
	return c.layers.PrepareSnapshot(ctx, layer)
}

// checkImageHandler refuses an image for another runtime handler than the one of the sandbox, which
// runs the container.
func checkImageHandler(config *runtimeapi.ContainerConfig, p *unit) error {
	asked := config.GetImage().GetRuntimeHandler()
	if asked == "" || asked == p.sandbox.Handler {
		return nil
	}
	return fmt.Errorf("image.runtime_handler: %q is not the handler of sandbox %s, which is %q: %w",
		asked, p.id, p.sandbox.Handler, errdefs.ErrInvalidArgument)
}

func stopSignal(config *runtimeapi.ContainerConfig, img Image) string {
	if s := config.GetStopSignal(); s != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return s.String()
	}
	if s := img.Config.StopSignal; s != "" {
		return s
	}
	return "SIGTERM"
}

// logPath returns the path of the container's log on this host. A path that would leave the pod's
// log directory is refused.
func logPath(p *unit, config *runtimeapi.ContainerConfig) (string, error) {
	dir, rel := p.sandbox.Config.GetLogDirectory(), config.GetLogPath()
	if dir == "" || rel == "" {
		return "", nil
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("log directory %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("log path %q leaves the pod's log directory: %w", rel, errdefs.ErrInvalidArgument)
	}
	return filepath.Join(dir, rel), nil
}
