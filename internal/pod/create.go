// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/spec"
	"berth/internal/state"
)

// CreateContainer makes a container in a READY sandbox and returns its ID. Nothing runs yet.
func (c *Controller) CreateContainer(ctx context.Context, podID string, config *runtimeapi.ContainerConfig) (string, error) {
	name := config.GetMetadata().GetName()
	p, err := c.units.findSandbox(podID)
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", name, err)
	}
	if err := p.mustBeReady(); err != nil {
		return "", fmt.Errorf("create container %s: %w", name, err)
	}
	if err := spec.CheckContainer(config); err != nil {
		return "", fmt.Errorf("create container %s: %w", name, err)
	}
	if err := checkImageHandler(config, p); err != nil {
		return "", fmt.Errorf("create container %s: %w", name, err)
	}
	return c.names.join(ctx, containerName(p.id, config.GetMetadata()), config, func(ctx context.Context, id string) error {
		if err := c.creator.create(ctx, id, p, config); err != nil {
			return fmt.Errorf("create container %s: %w", name, err)
		}
		return nil
	})
}

// creator makes containers, up to CREATED.
type creator struct {
	runtime     Runtime
	images      Images
	checkpoints Checkpoints // nil for none
	files       Files
	store       Store
	devices     Devices // nil for none
	hooks       Hooks   // nil for none
	make        units
	units       *registry
	specs       *specBuilder
	volumes     *imageVolumes
	teardown    *teardown
	publisher   *publisher
	obs         Observer
}

// create makes a container and returns once it is CREATED. What it made is undone if it fails.
func (c *creator) create(ctx context.Context, id string, p *unit, config *runtimeapi.ContainerConfig) error {
	began := time.Now()
	from, err := c.sourceOf(ctx, p, config)
	if err != nil {
		return err
	}
	img := from.image
	if err := spec.CheckImage(img.Config); err != nil {
		return fmt.Errorf("image %s: %w", imageRef(config), err)
	}
	img.Snapshotter = cmp.Or(p.handler.Snapshotter, img.Snapshotter)
	from.image = img
	volumes, err := c.volumes.plan(config, p.handler)
	if err != nil {
		return err
	}
	u, err := c.plan(id, p, config, from, volumes)
	if err != nil {
		return err
	}
	ctx, done := u.interruptible(ctx)
	defer done()
	// Nobody else knows u yet. A removal of the pod may find it from here on, and changes it only
	// once its record is there.
	_, _ = u.task.tryLock(), u.changing.tryLock()
	if !c.units.add(u) {
		return fmt.Errorf("sandbox %s is removed: %w", p.id, errdefs.ErrNotFound)
	}
	err = p.mustBeReady() // once more: a stop that began before u was added does not know of u
	if err == nil {
		err = c.store.Commit(state.NewContainer(*u.container, *u.now()))
	}
	u.erased = err != nil
	u.changing.unlock()
	if err != nil {
		c.units.drop(u)
		u.task.unlock()
		u.removed.Happen()
		return err
	}
	err = interrupted(ctx, guard(func() error { return c.makeContainer(ctx, u, img) }))
	u.task.unlock()
	if err != nil {
		c.obs.Event(id, "container could not be made", err)
		return errors.Join(err, c.teardown.undo(ctx, u, err))
	}
	c.obs.Event(id, "container CREATED", nil,
		"name", u.pod.sandbox.Config.GetMetadata().GetName()+"/"+u.container.Config.GetMetadata().GetName(),
		"took", time.Since(began).String())
	notifyCreated(ctx, c.hooks, u)
	c.publisher.publish(u, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return nil
}

// plan makes the unit of a container that is about to be made, with all that it may come to hold.
func (c *creator) plan(id string, p *unit, config *runtimeapi.ContainerConfig, from source, volumes []state.ImageVolume) (*unit, error) {
	logPath, err := logPath(p, config)
	if err != nil {
		return nil, err
	}
	now, img := time.Now(), from.image
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
func (c *creator) makeContainer(ctx context.Context, u *unit, img Image) error {
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
	if err := c.unpack(ctx, u, made); err != nil {
		return err
	}
	u.setLabel(made.Process.SelinuxLabel)
	if err := c.prepareSnapshot(ctx, u, img); err != nil {
		return err
	}
	own := u.handler
	own.Sandboxer = "" // the object is berth's own, and no sandbox controller of containerd's knows it
	if err := c.runtime.CreateSandbox(ctx, u.id, own); err != nil {
		return err
	}
	if err := c.runtime.CreateContainer(ctx, Object{
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
	err := c.runtime.PrepareSnapshot(ctx, layer)
	if !errdefs.IsNotFound(err) {
		return err
	}
	if err := c.images.Unpack(ctx, img); err != nil {
		return err
	}
	return c.runtime.PrepareSnapshot(ctx, layer)
}

// imageRef is the image that a container asks for.
func imageRef(config *runtimeapi.ContainerConfig) string { return config.GetImage().GetImage() }

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

// logPath is the container's log on this host. A path that would leave the pod's log directory is
// refused.
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
