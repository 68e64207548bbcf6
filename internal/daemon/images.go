// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/images/durable"
	"berth/internal/images/image"
	"berth/internal/images/imagestore"
	"berth/internal/images/peer"
	"berth/internal/images/policy"
)

// images has containerd's images, what decides which of them are allowed, and what shares them.
type images struct {
	base
	link    *link // whether containerd is there
	stored  *imagestore.Store
	service *image.Service
	preload *image.Preload
	policy  *policy.Guard
	// profiles are security profiles, which are not images.
	profiles *image.Profiles
	peers    *peer.Server // nil: nothing is served to peers
}

// minBytesPerMinute ends a pull from a registry that sends so little that it would never end.
const minBytesPerMinute = 1 << 10

// openImages makes what pulls, unpacks and removes containerd's images, and the list of them.
func openImages(b base, c *containerd, owner string) (im images, err error) {
	im = images{base: b, link: c.link}
	contents := &shared{link: c.link}
	var asks imagestore.Peers
	im.peers, asks = openPeers(b, contents)
	if im.stored, err = openStore(b, c, asks, owner); err != nil {
		return im, err
	}
	contents.stored = im.stored
	im.policy = openPolicy(b)
	im.service = image.New(im.stored, image.Config{
		PullTimeout:       time.Duration(b.cfg.Image.PullTimeout),
		MinBytesPerMinute: minBytesPerMinute,
		Needed:            sandboxImages(b.cfg.Runtimes),
		Pinned:            b.cfg.Image.Pinned,
		Logger:            b.log.Logger,
		Panicked:          b.panickedOverImage,
		Pulled:            b.metrics.Pulled,
		Policy:            pullPolicy{im.policy},
		Ops:               b.ops,
	})
	im.profiles = openProfiles(b, im.stored, im.policy)
	im.stored.SetDiscard(b.cfg.Image.DiscardBlobs)
	im.preload = image.NewPreload(im.service, image.PreloadConfig{
		Dir:    b.cfg.Image.PreloadDir,
		Memory: filepath.Join(b.cfg.Root, "preload.json"),
		Ready:  c.link.await,
	})
	return im, nil
}

// openStore makes the store of containerd's images.
func openStore(b base, c *containerd, asks imagestore.Peers, owner string) (*imagestore.Store, error) {
	cfg := b.cfg
	contents, dirs := "", []string(nil)
	if b.embeds() {
		contents = b.embedConfig().Root
		dirs = []string{contents} // which may be a disk of its own
	}
	boot, err := durable.OpenBoot(cfg.Root, dirs...)
	if err != nil {
		b.log.Warn("it cannot be noted in which boot images are made: after a power cut they may be checked needlessly, or not at all", "err", err)
	}
	stored, err := imagestore.New(c.conn, imagestore.Config{
		Snapshotter:            cfg.Containerd.Snapshotter,
		Snapshotters:           handlerSnapshotters(cfg.Runtimes),
		RegistryDir:            cfg.Image.RegistryDir,
		DecryptionKeysDir:      cfg.Image.DecryptionKeysDir,
		Credentials:            credentials(cfg.Image.Auth),
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads,
		MaxConcurrentUnpacks:   b.unpacks(),
		Owner:                  owner,
		MountDir:               filepath.Join(cfg.State, "images"),
		Logger:                 b.log.Logger,
		Panicked:               b.panickedOverImage,
		Boot:                   boot,
		Root:                   contents,
		WriteLate:              !cfg.Tricks.WriteEarly,
		Checked:                b.metrics.DurabilityChecked,
		Peers:                  asks,
	})
	if err != nil {
		return nil, err
	}
	if b.embeds() { // whatever else uses another containerd may make images there after this one has stopped
		b.undo.add(stored.Settle)
	}
	return stored, nil
}

// servePeers serves peers, if an address is configured.
func (im images) servePeers(ctx context.Context) error {
	if im.peers == nil {
		<-ctx.Done()
		return nil
	}
	return im.peers.Run(ctx)
}

// imageChanged takes note of an image event of containerd.
func (im images) imageChanged(name string) {
	im.service.Changed(name)
	im.stored.MayHaveChanged()
}

// keepDurable keeps a power cut from making images wrong, once containerd is there.
func (im images) keepDurable(ctx context.Context) error {
	if im.link.await(ctx) != nil {
		return nil // ctx has ended
	}
	return im.stored.KeepDurable(ctx)
}

// unpacks returns how many layers of an image are unpacked at the same time. Another containerd
// unpacks itself, layer by layer.
func (b base) unpacks() int {
	if !b.embeds() {
		return 1
	}
	return b.cfg.Image.MaxConcurrentUnpacks
}

// podImages plugs package image into the controller.
type podImages struct{ s *image.Service }

func (i podImages) Resolve(ref string) (pod.Image, error) {
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
func (i podImages) Pull(ctx context.Context, ref string) (pod.Image, error) {
	return i.pull(ctx, ref, image.Caller{Name: "berth itself", Itself: true})
}

// PullFor fetches an image for a pod, with the credentials that are configured.
func (i podImages) PullFor(ctx context.Context, of *runtimeapi.PodSandboxMetadata, ref string) (pod.Image, error) {
	return i.pull(ctx, ref, image.Caller{Name: of.GetNamespace() + "/" + of.GetName(), Namespace: of.GetNamespace()})
}

func (i podImages) pull(ctx context.Context, ref string, who image.Caller) (pod.Image, error) {
	id, err := i.s.Pull(ctx, ref, nil, who)
	if err != nil {
		return pod.Image{}, err
	}
	return i.Resolve(id)
}

func (i podImages) Files(ctx context.Context, img pod.Image) (passwd, group []byte, err error) {
	return i.s.Files(ctx, image.Root{ChainID: img.ChainID, Snapshotter: img.Snapshotter})
}

// Name returns what the status of a container shows as its image.
func (i podImages) Name(id, asked string) string { return i.s.Name(id, asked) }

// Unpack makes the snapshots of an image that is there without them.
func (i podImages) Unpack(ctx context.Context, img pod.Image) error {
	return i.s.Unpack(ctx, img.ID, img.Snapshotter)
}

// Checkpoint reads the checkpoint that an image holds.
func (i podImages) Checkpoint(ctx context.Context, img pod.Image) (io.ReadCloser, error) {
	return i.s.Checkpoint(ctx, img.ID)
}

func (i podImages) CopyOut(ctx context.Context, img pod.Image, dirs map[string]string) error {
	return i.s.CopyOut(ctx, image.Root{ChainID: img.ChainID, Snapshotter: img.Snapshotter}, dirs)
}

// known serves the images to clients. It says nothing of them before they were read for the first
// time.
type known struct {
	*image.Service
	containerd *containerd
	core       *Core
}

func (k known) wait() error {
	select {
	case <-k.containerd.link.met:
		return nil
	default:
		return k.containerd.reach(context.Background())
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
	if err := k.containerd.reach(ctx); err != nil {
		return "", fmt.Errorf("pull %s: %w", ref, err)
	}
	began, called := time.Now(), podCalled(k.core.Pods, who.Name)
	k.core.obs.Note(called, event.PullBegan{By: event.ClientOf(ctx), Image: ref})
	id, err := k.Service.Pull(ctx, ref, auth, who)
	if err != nil {
		k.core.obs.Note(called, event.ImageNotPulled{Image: ref, Took: time.Since(began), Err: err.Error()})
		return "", err
	}
	k.core.obs.Note(called, event.ImagePulled{Image: ref, Took: time.Since(began)})
	return id, nil
}

// podCalled returns the ID of the latest pod with a name, which is NAMESPACE/NAME, or "".
func podCalled(pods *pod.Controller, name string) (id string) {
	var latest int64
	for _, p := range pods.ListPodSandbox(&runtimeapi.PodSandboxFilter{}) {
		if m := p.GetMetadata(); m.GetNamespace()+"/"+m.GetName() == name && p.GetCreatedAt() >= latest {
			id, latest = p.GetId(), p.GetCreatedAt()
		}
	}
	return id
}

// Remove removes an image.
func (k known) Remove(ctx context.Context, ref string) error {
	if err := k.containerd.reach(ctx); err != nil {
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
	i, missing := k.Service.Resolve(ref)
	err := k.Service.Remove(ctx, ref)
	if err == nil && missing == nil {
		k.core.obs.Note("", event.ImageRemoved{By: event.ClientOf(ctx), Image: i.ID, Names: slices.Concat(i.Tags, i.Digests)})
	}
	return err
}
