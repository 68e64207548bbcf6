// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
)

// Remove removes an image with all its names, by whichever of them it is called: CRI removes
// images, not tags. Removing what is absent succeeds.
func (s *Service) Remove(ctx context.Context, ref string) error {
	i, err := s.Resolve(ref)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(ctx, i)
}

// remove removes the names that an image had when it was found. One that stands for something else
// by now stays.
func (s *Service) remove(ctx context.Context, i Image) error {
	for _, n := range i.Names {
		if err := s.backend.Delete(ctx, n); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", n, err)
		}
		if err := s.refreshName(ctx, n.String()); err != nil {
			return fmt.Errorf("remove image %s: %w", n, err)
		}
	}
	return nil
}

// Import reads the images of an archive, which may be compressed, and returns their names. ref
// names an image that has no name in the archive.
func (s *Service) Import(ctx context.Context, path, ref string) (names []string, err error) {
	all, err := s.load(ctx, KindImport, path, ref)
	for _, st := range all {
		names = append(names, st.Name.String())
	}
	return names, err
}

// load does what Import does, as a kind of transfer.
func (s *Service) load(ctx context.Context, kind, path, ref string) ([]Stored, error) {
	if ref != "" {
		n, err := Normalize(ref)
		if err != nil {
			return nil, err
		}
		ref = n
	}
	t := s.transfers.begin(kind, path, pullKey{})
	defer t.end()
	all, err := Contain(s.cfg.Logger, s.cfg.Panicked, path, func() ([]Stored, error) {
		return s.backend.Import(ctx, path, ref, t.reads)
	})
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	for _, st := range all {
		if err := s.refreshNames(ctx, st); err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
	}
	return all, nil
}

// refreshNames reads the names that an image has got.
func (s *Service) refreshNames(ctx context.Context, st Stored) error {
	for _, n := range st.NamesGiven() {
		if err := s.refreshName(ctx, n.String()); err != nil {
			return err
		}
	}
	return nil
}
