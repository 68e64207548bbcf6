// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

type unpackKey struct{ id, snapshotter string }

// Unpack makes the snapshots of an image that is there and not unpacked into a snapshotter: it was
// fetched by another client, its snapshots were lost, or another snapshotter was in use. Several
// callers share one unpacking. ErrNotFound says that the image is gone or that layers are missing.
func (s *Service) Unpack(ctx context.Context, id, snapshotter string) error {
	i, err := s.Resolve(id)
	if err != nil {
		return err
	}
	_, err = s.unpacks.join(ctx, unpackKey{i.ID, snapshotter}, "", func(ctx context.Context, _ context.CancelCauseFunc) (struct{}, error) {
		timeout := fmt.Errorf("it took more than %s", s.cfg.UnpackTimeout)
		ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.UnpackTimeout, timeout)
		defer cancel()
		s.cfg.Logger.Info("image is not unpacked, unpacking it", "image", i.Title(), "id", i.ID, "snapshotter", snapshotter)
		return Contain(s.cfg.Logger, s.cfg.Panicked, i.Name, func() (struct{}, error) {
			if err := s.backend.Unpack(ctx, i.Name, snapshotter); err != nil {
				return struct{}{}, because(ctx, err)
			}
			return struct{}{}, nil
		})
	})
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("unpack image %s: layers are missing on this node; pull the image again: %w", i.Title(), err)
	}
	if err != nil {
		return fmt.Errorf("unpack image %s: %w", i.Title(), err)
	}
	return nil
}

// Checkpoint returns the archive of the checkpoint that an image on this node holds, without its
// compression. The caller closes it. ErrNotFound says that the image is gone or that its layer is.
func (s *Service) Checkpoint(ctx context.Context, id string) (io.ReadCloser, error) {
	i, err := s.Resolve(id)
	if err != nil {
		return nil, err
	}
	return Contain(s.cfg.Logger, s.cfg.Panicked, i.Name, func() (io.ReadCloser, error) { return s.backend.Checkpoint(ctx, i.Name) })
}

// unpacked runs f, which needs the image with that chain ID unpacked, and runs it again once the
// image was unpacked if that is what it lacked.
func (s *Service) unpacked(ctx context.Context, chainID string, f func() error) error {
	err := f()
	if !errdefs.IsNotFound(err) {
		return err
	}
	id := s.withChain(chainID)
	if id == "" {
		return err
	}
	if err := s.Unpack(ctx, id, s.Snapshotter()); err != nil {
		return err
	}
	return f()
}

// withChain returns the ID of an image with that chain ID, or "".
func (s *Service) withChain(chainID string) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, i := range s.mu.index.byID {
		if i.ChainID == chainID {
			return id
		}
	}
	return ""
}
