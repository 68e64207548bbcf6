// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
)

// Remove removes an image with all its names, by whichever of them it is called: CRI removes
// images, not tags. Removing an absent image succeeds.
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

// Imported is the result of an import.
type Imported struct {
	Names []string `json:"names"` // of the images that were taken
	// LeftOut has a sentence for each image that was not, with the reason.
	LeftOut []string `json:"leftOut"`
}

// Import reads the images of an archive that are for this node. The archive may be compressed. ref
// names the image that has no name in it, or the only one that it has. An error says that there is
// none to be taken, or that one of them is bad; then no name has changed.
func (s *Service) Import(ctx context.Context, path, ref string) (Imported, error) {
	all, leftOut, err := s.load(ctx, KindImport, path, ref)
	in := Imported{Names: []string{}, LeftOut: leftOut}
	for _, st := range all {
		in.Names = append(in.Names, st.Name.String())
	}
	return in, err
}

// load is Import as a kind of transfer.
func (s *Service) load(ctx context.Context, kind, path, ref string) (all []Stored, leftOut []string, err error) {
	if ref != "" {
		if ref, err = Normalize(ref); err != nil {
			return nil, nil, err
		}
	}
	t := s.transfers.begin(kind, path, pullKey{})
	defer t.end()
	all, err = Contain(s.cfg.Logger, s.cfg.Panicked, path, func() (all []Stored, err error) {
		all, leftOut, err = s.backend.Import(ctx, path, ref, t.reads)
		return all, err
	})
	if err == nil {
		err = s.known(ctx, all...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("import %s: %w", path, err)
	}
	return all, leftOut, nil
}

// known reads the names that images were given.
func (s *Service) known(ctx context.Context, all ...Stored) error {
	for _, st := range all {
		for _, n := range st.NamesGiven() {
			if err := s.refreshName(ctx, n.String()); err != nil {
				return err
			}
		}
	}
	return nil
}
