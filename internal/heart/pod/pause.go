// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// pauses provides the program that holds the namespaces of a sandbox: the built-in one, or that of
// an image if the handler names one. Such an image is resolved once, before the sandbox is on
// record. A layer of the sandbox's own on top of it keeps it for as long as the sandbox has it,
// even if the image itself is removed.
type pauses struct {
	volumes *imageVolumes
	builtin string // root file system of the built-in program
	always  bool   // each sandbox has a pause process
	// shim reports whether the shim of a handler can do without; nil: none can.
	shim func(ctx context.Context, handler string) bool
}

// needless reports whether a sandbox of a handler can do without a process: none is needed, and
// none was requested.
func (p *pauses) needless(ctx context.Context, config *runtimeapi.PodSandboxConfig, h Handler) bool {
	if p.always || p.shim == nil || h.Sandboxer != "" || h.SandboxImage != "" || !h.HostProcess {
		return false
	}
	return !spec.NeedsProcess(config) && p.shim(ctx, h.Name)
}

// plan resolves the sandbox image of a handler, and pulls it if it is not on this node. nil: the
// handler does not name one.
func (p *pauses) plan(ctx context.Context, h Handler) (*state.SandboxImage, error) {
	if h.SandboxImage == "" || h.Sandboxer != "" {
		return nil, nil
	}
	img, err := p.volumes.images.Resolve(h.SandboxImage)
	if errdefs.IsNotFound(err) {
		img, err = p.volumes.images.Pull(ctx, h.SandboxImage)
	}
	if err != nil {
		return nil, fmt.Errorf("sandbox image of handler %s: %w", h.Name, err)
	}
	if img.Checkpoint {
		return nil, fmt.Errorf("sandbox image of handler %s: %s is a checkpoint of a container: %w", h.Name, h.SandboxImage, errdefs.ErrInvalidArgument)
	}
	if err := mayRun(img, h.SandboxImage); err != nil {
		return nil, fmt.Errorf("sandbox image of handler %s: %w", h.Name, err)
	}
	return &state.SandboxImage{
		ID:          img.ID,
		ChainID:     img.ChainID,
		Snapshotter: cmp.Or(h.Snapshotter, img.Snapshotter),
	}, nil
}

// make provides the pause program of u. The root file system is read-only to the program, and
// writable to the OCI runtime: an image without directories for /proc and /dev gets them.
func (p *pauses) make(ctx context.Context, u *unit) (spec.Pause, error) {
	of := u.sandbox.Image
	if of == nil { // even without a process: the specification defines its namespaces
		return spec.Pause{Rootfs: p.builtin, Args: []string{"/pause"}}, nil
	}
	out, err := p.mount(ctx, u, of)
	if err != nil {
		return spec.Pause{}, fmt.Errorf("sandbox image %s: %w", u.handler.SandboxImage, err)
	}
	return out, nil
}

func (p *pauses) mount(ctx context.Context, u *unit, of *state.SandboxImage) (spec.Pause, error) {
	img, err := p.volumes.images.Resolve(of.ID)
	if err != nil {
		return spec.Pause{}, err
	}
	out := spec.Pause{Image: &img.Config, ImageName: u.handler.SandboxImage}
	if img.Config.User != "" {
		if out.Passwd, out.Group, err = p.volumes.images.Files(ctx, img); err != nil {
			return spec.Pause{}, err
		}
	}
	ids, _ := spec.UserNamespace(u.sandbox.Config)
	if out.Rootfs, err = p.volumes.files.MakeRootfs(u.id, int(ids.UID)); err != nil {
		return spec.Pause{}, err
	}
	view := ImageView{
		Snapshotter: of.Snapshotter,
		Key:         viewKey(u.id, 0),
		ChainID:     of.ChainID,
		Dir:         out.Rootfs,
		Writable:    true,
		IDs:         ids,
	}
	return out, p.volumes.view(ctx, view, of.ID)
}
