// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"

	"berth/internal/image"
	"berth/internal/imagestore"
)

// admin serves berth.v1.Admin.
type admin struct {
	core   *Core
	images *image.Service
	stored *imagestore.Store
	reach  func(ctx context.Context) error // waits a little for containerd
}

// Import implements cri.AdminServer.
func (a admin) Import(ctx context.Context, path, ref string) ([]string, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("import %q: it is not an absolute path: %w", path, errdefs.ErrInvalidArgument)
	}
	if err := a.reach(ctx); err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	return a.images.Import(ctx, path, ref)
}

// PullProgress implements cri.AdminServer.
func (a admin) PullProgress(ctx context.Context, ref string) (any, error) {
	return a.images.Progress(ctx, ref)
}

// ImportProgress implements cri.AdminServer.
func (a admin) ImportProgress(_ context.Context, path string) (any, error) {
	return a.images.ImportProgress(path), nil
}

// VerifyImage implements cri.AdminServer.
func (a admin) VerifyImage(ctx context.Context, ref string, repair bool) (any, error) {
	if err := a.reach(ctx); err != nil {
		return nil, fmt.Errorf("verify image %s: %w", ref, err)
	}
	img, err := a.images.Resolve(ref)
	if err != nil {
		return nil, err
	}
	return a.stored.Verify(ctx, img.Name, repair)
}

// Timeline implements cri.AdminServer.
func (a admin) Timeline(_ context.Context, id string) (any, error) {
	full, entries, err := a.core.Timeline.Of(id)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"id": full, "entries": entries}
	for _, l := range a.core.Pods.Lanes() {
		if l.ID == full {
			out["lane"] = l
		}
	}
	return out, nil
}

// Lanes implements cri.AdminServer.
func (a admin) Lanes(context.Context) (any, error) { return a.core.Pods.Lanes(), nil }
