// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
)

type unpackKey struct{ chainID, snapshotter string }

// Unpack makes the snapshots of an image that is there and not unpacked into a snapshotter: it was
// fetched by another client, its snapshots were lost, or another snapshotter was in use. Several
// callers share one unpacking. ErrNotFound: the image is gone, or layers are missing.
func (s *Service) Unpack(ctx context.Context, id, snapshotter string) error {
	i, err := s.Resolve(id)
	if err != nil {
		return err
	}
	return s.unpack(ctx, i, snapshotter)
}

func (s *Service) unpack(ctx context.Context, i Image, snapshotter string) error {
	snapshotter = cmp.Or(snapshotter, s.Snapshotter())
	_, err := s.unpacks.join(ctx, unpackKey{i.ChainID, snapshotter}, "", func(ctx context.Context, _ context.CancelCauseFunc) (struct{}, error) {
		timeout := fmt.Errorf("it took more than %s", s.cfg.UnpackTimeout)
		ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.UnpackTimeout, timeout)
		defer cancel()
		s.cfg.Logger.Info("image is not unpacked, unpacking it", "image", i.Title(), "id", i.ID, "snapshotter", snapshotter)
		var errs []error
		for _, n := range s.sources(i) {
			_, err := Contain(s.cfg.Logger, s.cfg.Panicked, n.String(), func() (struct{}, error) {
				return struct{}{}, s.backend.Unpack(ctx, n, snapshotter)
			})
			if err == nil {
				return struct{}{}, nil
			}
			if errs = append(errs, because(ctx, err)); ctx.Err() != nil {
				break
			}
		}
		return struct{}{}, errors.Join(errs...)
	})
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("unpack image %s: layers are missing on this node; pull the image again: %w", i.Title(), err)
	}
	if err != nil {
		return fmt.Errorf("unpack image %s: %w", i.Title(), err)
	}
	return nil
}

// Checkpoint returns the archive of the checkpoint with an ID, without its compression. The caller
// closes it. ErrNotFound: it is not on this node.
func (s *Service) Checkpoint(ctx context.Context, id string) (io.ReadCloser, error) {
	return Contain(s.cfg.Logger, s.cfg.Panicked, id, func() (io.ReadCloser, error) { return s.backend.Checkpoint(ctx, id) })
}

// unpacked runs f, which needs an image unpacked, and runs it again once the image was unpacked, if
// it was not.
func (s *Service) unpacked(ctx context.Context, r Root, f func() error) error {
	err := f()
	if !errdefs.IsNotFound(err) {
		return err
	}
	i, ok := s.withChain(r.ChainID)
	if !ok {
		return err
	}
	if err := s.unpack(ctx, i, r.Snapshotter); err != nil {
		return err
	}
	return f()
}
