// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"

	berthv1 "berth/api/berth/v1"
	"berth/internal/images/image"
)

// Control answers berth.v1.Control, with what Node knows.
type Control struct {
	berthv1.UnsafeControlServer

	Node *Node
}

// ImportImages implements berthv1.ControlServer.
func (c Control) ImportImages(ctx context.Context, req *berthv1.ImportImagesRequest) (*berthv1.ImportImagesResponse, error) {
	path := req.GetPath()
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("import %q: it is not an absolute path: %w", path, errdefs.ErrInvalidArgument)
	}
	if err := c.Node.Reach(ctx); err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	in, err := c.Node.ImageService.Import(ctx, path, req.GetRef())
	return &berthv1.ImportImagesResponse{Names: in.Names, LeftOut: in.LeftOut}, err
}

// PruneImages implements berthv1.ControlServer.
func (c Control) PruneImages(ctx context.Context, req *berthv1.PruneImagesRequest) (*berthv1.PruneImagesResponse, error) {
	if err := req.GetOlderThan().CheckValid(); err != nil {
		return nil, fmt.Errorf("prune images: older_than: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := c.Node.Reach(ctx); err != nil {
		return nil, fmt.Errorf("prune images: %w", err)
	}
	p, err := c.Node.ImageService.Prune(ctx, image.PruneOptions{
		DryRun:    req.GetDryRun(),
		OlderThan: req.GetOlderThan().AsDuration(),
		Used:      c.Node.users,
	})
	resp := &berthv1.PruneImagesResponse{
		Bytes:  p.Bytes,
		Kept:   p.Kept,
		Pinned: count(p.Pinned),
		Used:   count(p.Used),
		Young:  count(p.Young),
	}
	for _, i := range p.Images {
		resp.Images = append(resp.Images, &berthv1.PrunedImage{
			Id:    i.ID,
			Names: i.Names,
			Bytes: i.Bytes,
			Error: i.Error,
		})
	}
	return resp, err
}

// RepairImage implements berthv1.ControlServer.
func (c Control) RepairImage(ctx context.Context, req *berthv1.RepairImageRequest) (*berthv1.RepairImageResponse, error) {
	parts, err := c.Node.verify(ctx, req.GetImage(), true)
	return &berthv1.RepairImageResponse{Parts: parts}, err
}
