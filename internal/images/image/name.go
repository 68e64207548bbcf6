// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Name is one name in an image store together with its target. NewName alone makes one. A decision
// about an image is made on a Name, and the action that follows is handed that Name, so that no
// second look-up finds another image. The zero value is wrong: see IsWrong.
type Name struct {
	text   string
	target ocispec.Descriptor
	form   form
}

// form is how a name is written.
type form int

const (
	wrong    form = iota
	byTag         // a reference with a tag
	byDigest      // a reference with the digest of the target
	byID          // the ID of the image
)

// NewName makes a name for target, the manifest or the index of the image with an ID. The text is
// that ID, or a normalized reference whose digest, if it has one, is that of the target. For any
// other text the error is ErrInvalidArgument, and the name is wrong.
func NewName(text string, target ocispec.Descriptor, id string) (Name, error) {
	n := Name{text: text, target: target}
	if text != "" && text == id {
		n.form = byID
		return n, nil
	}
	ref, err := reference.ParseDockerRef(text)
	if err != nil {
		return n, fmt.Errorf("image name %q: %w: %w", text, err, errdefs.ErrInvalidArgument)
	}
	if full := ref.String(); full != text {
		return n, fmt.Errorf("image name %q: it is not complete, as %q would be: %w",
			text, full, errdefs.ErrInvalidArgument)
	}
	if d, ok := ref.(reference.Digested); !ok {
		n.form = byTag
	} else if d.Digest() == target.Digest {
		n.form = byDigest
	} else {
		return n, fmt.Errorf("image name %q: it stands for %s and not for the digest in it: %w",
			text, target.Digest, errdefs.ErrInvalidArgument)
	}
	return n, nil
}

// String returns the name as it is stored.
func (n Name) String() string { return n.text }

// Target is the manifest or index that the name stands for, as its registry describes it:
// read-only.
func (n Name) Target() ocispec.Descriptor { return n.target }

// IsWrong reports whether NewName has refused the name. An older berth, or another client of
// containerd's, may have stored it. It keeps its image on this node, can be removed, and is not
// used to find the image nor to decide about it.
func (n Name) IsWrong() bool { return n.form == wrong }

// IsID reports whether the name is the ID of its image.
func (n Name) IsID() bool { return n.form == byID }

// NamesGiven returns all that an image which came under the name of s is to be called on this
// node: by its ID, by its repository with the digest of its target, and by the name itself, unless
// that is wrong.
func (s Stored) NamesGiven() []Name {
	target := s.Name.target
	names := []Name{{s.ID, target, byID}}
	if ref, err := reference.ParseDockerRef(s.Name.text); err == nil {
		if exact, err := reference.WithDigest(reference.TrimNamed(ref), target.Digest); err == nil {
			names = append(names, Name{exact.String(), target, byDigest})
		}
	}
	if s.Name.form == byTag {
		names = append(names, s.Name)
	}
	return names
}
