// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/images/durable"
	"berth/internal/images/image"
	"berth/internal/images/imagestore"
)

// openImageStore makes what pulls, unpacks and removes containerd's images.
func (d *daemon) openImageStore() error {
	cfg := d.cfg
	contents, dirs := "", []string(nil)
	if d.embeds() {
		contents = d.embedConfig().Root
		dirs = []string{contents} // which may be a disk of its own
	}
	boot, err := durable.OpenBoot(cfg.Root, dirs...)
	if err != nil {
		d.log.Warn("it cannot be noted in which boot images are made: after a power cut they may be checked needlessly, or not at all", "err", err)
	}
	if d.stored, err = imagestore.New(d.conn, imagestore.Config{
		Snapshotter:            cfg.Containerd.Snapshotter,
		Snapshotters:           handlerSnapshotters(cfg.Runtimes),
		RegistryDir:            cfg.Image.RegistryDir,
		DecryptionKeysDir:      cfg.Image.DecryptionKeysDir,
		Credentials:            credentials(cfg.Image.Auth),
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads,
		MaxConcurrentUnpacks:   d.unpacks(),
		Owner:                  d.store.Owner(),
		MountDir:               filepath.Join(cfg.State, "images"),
		Logger:                 d.log.Logger,
		Panicked:               d.panickedOverImage,
		Boot:                   boot,
		Root:                   contents,
		WriteLate:              !cfg.Tricks.WriteEarly,
		Checked:                d.metrics.DurabilityChecked,
		Peers:                  d.asks,
	}); err != nil {
		return err
	}
	if d.embeds() { // whatever else uses another containerd may make images there after this one has stopped
		d.undo = append(d.undo, d.stored.Settle)
	}
	return nil
}

// openImages makes the image service, and what imports the archives of a directory.
func (d *daemon) openImages() error {
	cfg := d.cfg
	d.images = image.New(d.stored, image.Config{
		PullTimeout:       time.Duration(cfg.Image.PullTimeout),
		MinBytesPerMinute: int64(cfg.Image.MinBytesPerMinute),
		Needed:            sandboxImages(cfg.Runtimes),
		Pinned:            cfg.Image.Pinned,
		Logger:            d.log.Logger,
		Panicked:          d.panickedOverImage,
		Pulled:            d.metrics.Pulled,
		Policy:            pullPolicy{d.policy},
	})
	d.stored.SetDiscard(cfg.Image.DiscardBlobs)
	d.preload = image.NewPreload(d.images, image.PreloadConfig{
		Dir:    cfg.Image.PreloadDir,
		Memory: filepath.Join(cfg.Root, "preload.json"),
		Ready:  d.link.await,
	})
	return nil
}

// panickedOverImage counts a panic over an image.
func (d *daemon) panickedOverImage() { d.metrics.Panicked("image") }

// imageChanged takes note of an image event of containerd.
func (d *daemon) imageChanged(name string) {
	d.images.Changed(name)
	d.stored.MayHaveChanged()
}

// keepDurable keeps a power cut from making images wrong, once containerd is there.
func (d *daemon) keepDurable(ctx context.Context) error {
	if d.link.await(ctx) != nil {
		return nil // ctx has ended
	}
	return d.stored.KeepDurable(ctx)
}

// unpacks returns how many layers of an image are unpacked at the same time. Another containerd
// unpacks itself, layer by layer.
func (d *daemon) unpacks() int {
	if !d.embeds() {
		return 1
	}
	return d.cfg.Image.MaxConcurrentUnpacks
}

// images plugs package image into the controller.
type images struct{ s *image.Service }

func (i images) Resolve(ref string) (pod.Image, error) {
	img, err := i.s.Resolve(ref)
	if err != nil {
		return pod.Image{}, err
	}
	var names []pod.ImageName
	for _, n := range img.Names {
		if !n.IsID() && !n.IsWrong() {
			names = append(names, pod.ImageName{Name: n.String(), Target: n.Target()})
		}
	}
	return pod.Image{
		ID:          img.ID,
		Ref:         img.Ref(),
		Names:       names,
		ChainID:     img.ChainID,
		Snapshotter: i.s.Snapshotter(),
		Config:      img.Config,
		Checkpoint:  img.Checkpoint,
		Artifact:    img.Artifact != "",
	}, nil
}

// Pull fetches an image that berth needs, with the credentials that are configured.
func (i images) Pull(ctx context.Context, ref string) (pod.Image, error) {
	return i.pull(ctx, ref, image.Caller{Name: "berth itself", Itself: true})
}

// PullFor fetches an image for a pod, with the credentials that are configured.
func (i images) PullFor(ctx context.Context, of *runtimeapi.PodSandboxMetadata, ref string) (pod.Image, error) {
	return i.pull(ctx, ref, image.Caller{Name: of.GetNamespace() + "/" + of.GetName(), Namespace: of.GetNamespace()})
}

func (i images) pull(ctx context.Context, ref string, who image.Caller) (pod.Image, error) {
	id, err := i.s.Pull(ctx, ref, nil, who)
	if err != nil {
		return pod.Image{}, err
	}
	return i.Resolve(id)
}

func (i images) Files(ctx context.Context, img pod.Image) (passwd, group []byte, err error) {
	return i.s.Files(ctx, img.ChainID)
}

// Name returns what the status of a container shows as its image.
func (i images) Name(id, asked string) string { return i.s.Name(id, asked) }

// Unpack makes the snapshots of an image that is there without them.
func (i images) Unpack(ctx context.Context, img pod.Image) error {
	return i.s.Unpack(ctx, img.ID, img.Snapshotter)
}

// Checkpoint reads the checkpoint that an image holds.
func (i images) Checkpoint(ctx context.Context, img pod.Image) (io.ReadCloser, error) {
	return i.s.Checkpoint(ctx, img.ID)
}

func (i images) CopyOut(ctx context.Context, img pod.Image, dirs map[string]string) error {
	return i.s.CopyOut(ctx, img.ChainID, dirs)
}

// known serves the images to clients. It says nothing of them before they were read for the first
// time.
type known struct {
	*image.Service
	d *daemon
}

func (k known) wait() error {
	select {
	case <-k.d.link.met:
		return nil
	default:
		return k.d.reach(context.Background())
	}
}

// List lists images.
func (k known) List(f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if err := k.wait(); err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	return k.Service.List(f)
}

// Status returns one image.
func (k known) Status(ref string) (*runtimeapi.Image, *image.Image, error) {
	if err := k.wait(); err != nil {
		return nil, nil, fmt.Errorf("image status of %s: %w", ref, err)
	}
	return k.Service.Status(ref)
}

// Pull fetches an image.
func (k known) Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig, who image.Caller) (string, error) {
	if err := k.d.reach(ctx); err != nil {
		return "", fmt.Errorf("pull %s: %w", ref, err)
	}
	began, pod := time.Now(), k.d.podCalled(who.Name)
	k.d.core.obs.Note(pod, event.PullBegan{By: event.ClientOf(ctx), Image: ref})
	id, err := k.Service.Pull(ctx, ref, auth, who)
	if err != nil {
		k.d.core.obs.Note(pod, event.ImageNotPulled{Image: ref, Took: time.Since(began), Err: err.Error()})
		return "", err
	}
	k.d.core.obs.Note(pod, event.ImagePulled{Image: ref, Took: time.Since(began)})
	return id, nil
}

// podCalled returns the ID of the latest pod with a name, which is NAMESPACE/NAME, or "".
func (d *daemon) podCalled(name string) (id string) {
	var latest int64
	for _, p := range d.core.Pods.ListPodSandbox(&runtimeapi.PodSandboxFilter{}) {
		if m := p.GetMetadata(); m.GetNamespace()+"/"+m.GetName() == name && p.GetCreatedAt() >= latest {
			id, latest = p.GetId(), p.GetCreatedAt()
		}
	}
	return id
}

// Remove removes an image.
func (k known) Remove(ctx context.Context, ref string) error {
	if err := k.d.reach(ctx); err != nil {
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
	return k.Service.Remove(ctx, ref)
}
