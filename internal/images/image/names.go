// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
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

// RemoveOptions say how a person wants an image removed.
type RemoveOptions struct {
	Force  bool   // also if containers use it, or if it has several tags and is named by its ID
	DryRun bool   // remove nothing, and return what would go
	Used   Usages // who uses images, asked right before one is removed
}

// Removal is the effect of the removal of a name.
type Removal struct {
	ID    string
	Names []string // that are taken away, also those that go with the one that was named
	Left  []string // under which the image stays; none if it goes
	Users []string // of an image that goes
	Bytes int64    // that are given back
}

// RemoveName takes one name away from its image. The digest of its repository goes with the last
// tag of that repository, and the image with the last of its names. If ref is an ID, all names go.
// ErrNotFound if there is no such name, and ErrFailedPrecondition if it needs Force.
func (s *Service) RemoveName(ctx context.Context, ref string, o RemoveOptions) (Removal, error) {
	i, err := s.Resolve(ref)
	if err != nil {
		return Removal{}, err
	}
	taken := i.named(ref)
	r := Removal{ID: i.ID}
	for _, name := range slices.Concat(i.Tags, i.Digests) {
		if slices.ContainsFunc(taken, func(n Name) bool { return n.text == name }) {
			r.Names = append(r.Names, name)
		} else {
			r.Left = append(r.Left, name)
		}
	}
	if len(r.Left) == 0 {
		taken, r.Users = i.Names, o.Used()[i.ID]
		c, err := s.backend.Contents(ctx)
		if err != nil {
			return r, fmt.Errorf("remove image %s: %w", ref, err)
		}
		r.Bytes = c.frees(i.ID)
	}
	switch name, _ := Normalize(ref); {
	case o.DryRun:
		return r, nil
	case o.Force:
	case len(r.Users) > 0:
		return r, fmt.Errorf("remove image %s: it is used by %s; remove these first, or use force: %w",
			ref, strings.Join(r.Users, ", "), errdefs.ErrFailedPrecondition)
	case len(i.Tags) > 1 && !slices.Contains(r.Names, name):
		return r, fmt.Errorf("remove image %s: it is an ID, and the image is known as %s; name one of these, or use force to remove all: %w",
			ref, strings.Join(i.Tags, ", "), errdefs.ErrFailedPrecondition)
	}
	i.Names = taken
	return r, s.remove(ctx, i)
}

// named returns the names that go if ref is removed: all if it is an ID, and else the name itself,
// with the digest of its repository if it is the last tag of that.
func (i Image) named(ref string) (taken []Name) {
	text, err := Normalize(ref)
	at := slices.IndexFunc(i.Names, func(n Name) bool { return err == nil && n.text == text && !n.IsID() })
	if at < 0 {
		return i.Names
	}
	taken = []Name{i.Names[at]}
	repository := func(name string) string {
		if ref, err := reference.ParseDockerRef(name); err == nil {
			return ref.Name()
		}
		return name
	}
	sibling := func(tag string) bool { return tag != text && repository(tag) == repository(text) }
	if taken[0].form != byTag || slices.ContainsFunc(i.Tags, sibling) {
		return taken
	}
	for _, n := range i.Names {
		if n.form == byDigest && repository(n.text) == repository(text) {
			taken = append(taken, n)
		}
	}
	return taken
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
	ctx, t := s.transfers.begin(ctx, kind, path, pullKey{})
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
