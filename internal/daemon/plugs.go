// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/image"
	"berth/internal/network"
	"berth/internal/pod"
)

// cgroups plugs package cgroup into the controller.
type cgroups struct {
	ooms *cgroup.OOMWatch // nil where the kernel did not give one
}

var errNoOOMWatch = fmt.Errorf("berth could not make a watch when it started: %w", errdefs.ErrUnavailable)

func (c cgroups) WatchOOM(id, dir string) (all bool, err error) {
	if c.ooms == nil {
		return false, errNoOOMWatch
	}
	return c.ooms.Watch(id, dir)
}

func (c cgroups) ForgetOOM(id string) {
	if c.ooms != nil {
		c.ooms.Forget(id)
	}
}

func (cgroups) LimitHits(dir string) ([]uint64, error) { return cgroup.LimitHits(dir) }

func (cgroups) Of(pid uint32) (string, error)                 { return cgroup.Of(pid) }
func (cgroups) Dir(path string) string                        { return cgroup.Dir(path) }
func (cgroups) OOMKills(dir string) (uint64, error)           { return cgroup.OOMKills(dir) }
func (cgroups) OOMKillsBelow(dir string) (uint64, error)      { return cgroup.OOMKillsBelow(dir) }
func (cgroups) KillAll(ctx context.Context, dir string) error { return cgroup.KillAll(ctx, dir) }
func (cgroups) RemoveAll(ctx context.Context, path string) (bool, error) {
	return cgroup.RemoveAll(ctx, path)
}

// pluginGroups plugs the groups of package cgroup into the network.
type pluginGroups struct{ *cgroup.Groups }

func (g pluginGroups) New(id string) (network.Group, error) { return g.Groups.New(id) }

// images plugs package image into the controller.
type images struct{ s *image.Service }

func (i images) Resolve(ref string) (pod.Image, error) {
	img, err := i.s.Resolve(ref)
	if err != nil {
		return pod.Image{}, err
	}
	return pod.Image{
		ID:          img.ID,
		Ref:         img.Ref(),
		ChainID:     img.ChainID,
		Snapshotter: i.s.Snapshotter(),
		Config:      img.Config,
		Checkpoint:  img.Checkpoint,
		Artifact:    img.Artifact != "",
	}, nil
}

// Pull fetches an image that berth needs, with the credentials that are configured.
func (i images) Pull(ctx context.Context, ref string) error {
	_, err := i.s.Pull(ctx, ref, nil, image.Caller{Name: "berth itself", Itself: true})
	return err
}

// PullFor fetches an image for a pod, with the credentials that are configured.
func (i images) PullFor(ctx context.Context, pod *runtimeapi.PodSandboxMetadata, ref string) error {
	_, err := i.s.Pull(ctx, ref, nil, image.Caller{Name: pod.GetNamespace() + "/" + pod.GetName(), Namespace: pod.GetNamespace()})
	return err
}

func (i images) Files(ctx context.Context, img pod.Image) (passwd, group []byte, err error) {
	return i.s.Files(ctx, img.ChainID)
}

// Name returns what the status of a container shows as its image.
func (i images) Name(id string) string { return i.s.Name(id) }

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
