// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/event"
	"berth/internal/images/image"
)

// Control answers berth.v1.Control, with the knowledge of Node.
type Control struct {
	berthv1.UnsafeControlServer

	Node *Node
	Note func(id string, e event.Event) // adds an event to the history
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
	for _, i := range p.Images {
		if i.Error == "" && !req.GetDryRun() {
			c.Note("", event.ImageRemoved{By: event.ClientOf(ctx), Image: i.ID, Names: i.Names})
		}
	}
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

// RemoveImage implements berthv1.ControlServer.
func (c Control) RemoveImage(ctx context.Context, req *berthv1.RemoveImageRequest) (*berthv1.RemoveImageResponse, error) {
	if err := c.Node.Reach(ctx); err != nil {
		return nil, fmt.Errorf("remove image %s: %w", req.GetImage(), err)
	}
	i, _ := c.Node.ImageService.Resolve(req.GetImage()) // the removal reports the error
	r, err := c.Node.ImageService.RemoveName(ctx, req.GetImage(), image.RemoveOptions{
		Force:  req.GetForce(),
		DryRun: req.GetDryRun(),
		Used:   c.Node.users,
	})
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		c.Note("", event.ImageRemoved{By: event.ClientOf(ctx), Image: r.ID, Names: r.Names, Stays: len(r.Left) > 0})
	}
	return &berthv1.RemoveImageResponse{
		Id:     r.ID,
		Names:  r.Names,
		Left:   r.Left,
		Users:  r.Users,
		Bytes:  r.Bytes,
		Pinned: i.Pinned,
	}, nil
}

// RepairImage implements berthv1.ControlServer.
func (c Control) RepairImage(ctx context.Context, req *berthv1.RepairImageRequest) (*berthv1.RepairImageResponse, error) {
	parts, err := c.Node.verify(ctx, req.GetImage(), true)
	return &berthv1.RepairImageResponse{Parts: parts}, err
}
