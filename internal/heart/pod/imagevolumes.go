// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// imageVolumes mounts images into containers. The image is resolved once, before the container is
// on record, so that the record has the mounted image even if the tag moves on. A view of the image
// keeps its layers for as long as the container has it, even if the image itself is removed.
type imageVolumes struct {
	layers Layers
	images Images
	files  Files
	labels Labels // nil without SELinux
}

// viewMark stands between the ID of a container and the number of an image in the key of a view.
const viewMark = "-image-"

func viewKey(id string, n int) string { return id + viewMark + strconv.Itoa(n) }

// spareKey returns the key of a view that is there while the writable layer of a container is
// renewed.
func spareKey(id string) string { return id + viewMark + "spare" }

// viewedBy returns the container that the snapshot with a key belongs to, and whether the snapshot
// is a view of an image that the container mounts.
func viewedBy(key string) (id string, isView bool) {
	id, _, isView = strings.Cut(key, viewMark)
	return id, isView
}

// plan resolves the images that a configuration mounts, and returns them by the index of the mount
// as well. ErrNotFound names one that is not on this node.
func (v *imageVolumes) plan(config *runtimeapi.ContainerConfig, h Handler) ([]state.ImageVolume, map[int]Image, error) {
	var list []state.ImageVolume
	found := map[int]Image{}
	for i, m := range config.GetMounts() {
		if m.GetImage() == nil {
			continue
		}
		img, err := v.images.Resolve(m.GetImage().GetImage())
		if err != nil {
			return nil, nil, mountFailed(m, err)
		}
		found[i] = img
		list = append(list, state.ImageVolume{
			Mount:       i,
			ImageID:     img.ID,
			ChainID:     img.ChainID,
			Snapshotter: cmp.Or(h.Snapshotter, img.Snapshotter),
		})
	}
	return list, found, nil
}

// mount mounts the images of u, and returns the directory of each by the index of its mount.
func (v *imageVolumes) mount(ctx context.Context, u *unit) (map[int]string, error) {
	dirs := map[int]string{}
	for n, vol := range u.container.ImageVolumes {
		m := u.container.Config.GetMounts()[vol.Mount]
		dir, err := v.mountOne(ctx, u, n, vol)
		if err == nil {
			dirs[vol.Mount], err = v.files.Below(dir, m.GetImageSubPath())
		}
		if err != nil {
			return nil, mountFailed(m, err)
		}
	}
	return dirs, nil
}

func (v *imageVolumes) mountOne(ctx context.Context, u *unit, n int, vol state.ImageVolume) (string, error) {
	dir, err := v.files.MakeImageVolume(u.id, n)
	if err != nil {
		return "", err
	}
	view := ImageView{
		Snapshotter: vol.Snapshotter,
		Key:         viewKey(u.id, n),
		ChainID:     vol.ChainID,
		Dir:         dir,
	}
	view.IDs, _ = spec.UserNamespace(u.pod.sandbox.Config)
	return dir, v.view(ctx, view, vol.ImageID)
}

// view makes a view of the image of an ID. The image is unpacked first if it is on this node
// without its snapshots.
func (v *imageVolumes) view(ctx context.Context, view ImageView, id string) error {
	if v.labels != nil {
		view.Label = v.labels.ReadOnly()
	}
	err := v.layers.MountImage(ctx, view)
	if !errdefs.IsNotFound(err) {
		return err
	}
	if err := v.images.Unpack(ctx, Image{ID: id, ChainID: view.ChainID, Snapshotter: view.Snapshotter}); err != nil {
		return err
	}
	return v.layers.MountImage(ctx, view)
}

// release deletes the views of u. They are not mounted any more.
func (v *imageVolumes) release(ctx context.Context, u *unit) error {
	if u.isSandbox() {
		if u.sandbox.Image == nil {
			return nil
		}
		return v.layers.DeleteSnapshot(ctx, u.sandbox.Image.Snapshotter, viewKey(u.id, 0))
	}
	var errs []error
	for n, vol := range u.container.ImageVolumes {
		errs = append(errs, absent(v.layers.DeleteSnapshot(ctx, vol.Snapshotter, viewKey(u.id, n))))
	}
	return errors.Join(errs...)
}

// mountFailed returns the error of a mount of an image. The kubelet looks for the name that CRI has
// for it.
func mountFailed(m *runtimeapi.Mount, err error) error {
	return fmt.Errorf("%w: mount %s: image %s: %w", crierrors.ErrImageVolumeMountFailed, m.GetContainerPath(), m.GetImage().GetImage(), err)
}

// withImageRefs returns the mounts of a container for its status, in which a mount of an image
// contains the image's reference.
func withImageRefs(ct *state.Container) []*runtimeapi.Mount {
	mounts := ct.Config.GetMounts()
	if len(ct.ImageVolumes) == 0 {
		return mounts
	}
	mounts = slices.Clone(mounts)
	for _, vol := range ct.ImageVolumes {
		m := proto.CloneOf(mounts[vol.Mount])
		m.Image.ImageRef = vol.ImageID
		mounts[vol.Mount] = m
	}
	return mounts
}
