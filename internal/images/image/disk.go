// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
)

// Contents has the blobs and layers on the disk, and those of each image.
type Contents struct {
	Blobs    map[string]int64 // their sizes in bytes, by digest
	Layers   map[string]Layer // unpacked layers of images, by chain ID
	Writable map[string]Layer // layers of containers, and views of images, by name
	Images   map[string]Parts // by ID; those that could not be read are under ""
	Unread   []string         // names of images that could not be read
	Kept     []Kept
	Coming   int64 // bytes that are here of blobs that are not whole
}

// Kept is the result of a pull that was cut off, for the next one of the same name.
type Kept struct {
	Ref    string
	Reason string
	Bytes  int64 // without blobs that images have as well
	Until  time.Time
}

// Layer is a layer as files.
type Layer struct {
	Parent   string // the chain ID of the layer below
	Size     int64  // in bytes, without its parents
	Measured bool   // Size is known
}

// Parts are the blobs and layers of an image.
type Parts struct {
	Blobs   map[string]bool // digests; some may not be here
	ChainID string          // of its uppermost layer
}

// Chain calls f with a layer and all that it is on, as far as they are unpacked.
func (c Contents) Chain(layer string, f func(name string, l Layer)) {
	for range len(c.Layers) {
		l, ok := c.Layers[layer]
		if !ok {
			return
		}
		f(layer, l)
		layer = l.Parent
	}
}

// size returns how many bytes an image takes, shared ones included.
func (c Contents) size(id string) (n int64) {
	for d := range c.Images[id].Blobs {
		n += c.Blobs[d]
	}
	c.Chain(c.Images[id].ChainID, func(_ string, l Layer) { n += l.Size })
	return n
}

// frees returns how many bytes the removal of images gives back: those that neither another image
// nor a container needs.
func (c Contents) frees(ids ...string) (n int64) {
	blobs, layers := map[string]bool{}, map[string]bool{}
	keep := func(name string, _ Layer) { layers[name] = true }
	for id, p := range c.Images {
		if !slices.Contains(ids, id) {
			maps.Copy(blobs, p.Blobs)
			c.Chain(p.ChainID, keep)
		}
	}
	for _, l := range c.Writable {
		c.Chain(l.Parent, keep)
	}
	for _, id := range ids {
		for d := range c.Images[id].Blobs {
			if !blobs[d] {
				blobs[d] = true
				n += c.Blobs[d]
			}
		}
		c.Chain(c.Images[id].ChainID, func(name string, l Layer) {
			if !layers[name] {
				layers[name] = true
				n += l.Size
			}
		})
	}
	return n
}

// Listed is an image as a person wants to know it.
type Listed struct {
	ID          string   `json:"id"`
	RepoTags    []string `json:"repoTags"`
	RepoDigests []string `json:"repoDigests"`
	// Size is the size of the image in its registry, in bytes, as CRI has it.
	Size uint64 `json:"size,string"`
	// Disk is how many bytes it takes on this node, shared ones included, and Frees how many its
	// removal would give back.
	Disk    int64     `json:"disk"`
	Frees   int64     `json:"frees"`
	Created time.Time `json:"created,omitzero"` // when it came to this node
	Pinned  bool      `json:"pinned"`
	Pins    []Pin     `json:"pins"` // why it is pinned
	Users   []string  `json:"users"`
	// Artifact is the type of an OCI artifact, which is mounted and not run; "" for an image.
	Artifact string `json:"artifact,omitempty"`
	// Checkpoint is set if it holds a checkpoint of a container.
	Checkpoint bool `json:"checkpoint,omitempty"`
}

// Usages names the users of each image, by the image's ID.
type Usages func() map[string][]string

// Details lists all images, the one that has been here for longest first.
func (s *Service) Details(ctx context.Context, used Usages) ([]Listed, error) {
	c, err := s.backend.Contents(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	users := used()
	list := []Listed{}
	for _, i := range s.images() {
		list = append(list, Listed{
			ID:          i.ID,
			RepoTags:    append([]string{}, i.Tags...),
			RepoDigests: append([]string{}, i.Digests...),
			Size:        uint64(max(i.Size, 0)),
			Disk:        c.size(i.ID),
			Frees:       c.frees(i.ID),
			Created:     i.Created,
			Pinned:      i.Pinned,
			Pins:        append([]Pin{}, i.Pins...),
			Users:       append([]string{}, users[i.ID]...),
			Artifact:    i.Artifact,
			Checkpoint:  i.Checkpoint,
		})
	}
	return list, nil
}

// Share is a part of the used disk.
type Share struct {
	What  string `json:"what"`
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"`
	// Reclaimable is how many of the bytes can be given back without a loss that a pull does not
	// make good.
	Reclaimable int64 `json:"reclaimable"`
	// Unknown is how many of those that Count counts could not be measured yet.
	Unknown int    `json:"unknown,omitempty"`
	Note    string `json:"note,omitempty"`
}

// Shares returns how much of the disk images and layers take.
func (s *Service) Shares(ctx context.Context, used Usages) ([]Share, error) {
	c, err := s.backend.Contents(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure images: %w", err)
	}
	users := used()
	var unused []string
	for _, i := range s.images() {
		if !i.Pinned && len(users[i.ID]) == 0 {
			unused = append(unused, i.ID)
		}
	}
	layers := Share{What: "layers", Count: len(c.Layers), Note: "unpacked layers of images"}
	for _, l := range c.Layers {
		layers.add(l)
	}
	blobs := Share{What: "blobs", Count: len(c.Blobs), Note: "manifests and compressed layers"}
	for _, n := range c.Blobs {
		blobs.Bytes += n
	}
	images := Share{
		What:        "images",
		Count:       len(c.Images),
		Bytes:       layers.Bytes + blobs.Bytes,
		Reclaimable: c.frees(unused...),
		Unknown:     layers.Unknown,
		Note:        fmt.Sprintf("layers and blobs together; %d of the images are neither used nor pinned", len(unused)),
	}
	if _, ok := c.Images[""]; ok { // those that cannot be read
		images.Count += len(c.Unread) - 1
	}
	onlyBlobs, onlyLayers := c, c
	onlyBlobs.Layers, onlyLayers.Blobs = nil, nil
	blobs.Reclaimable, layers.Reclaimable = onlyBlobs.frees(unused...), onlyLayers.frees(unused...)
	writable := Share{What: "writable layers", Count: len(c.Writable), Note: "what containers have written"}
	for _, l := range c.Writable {
		writable.add(l)
	}
	return []Share{images, layers, blobs, c.coming(), writable}, nil
}

// coming returns the incomplete blobs of images that are on their way. The blobs and layers of it
// that are whole count as blobs and layers as well.
func (c Contents) coming() Share {
	s := Share{What: "pulls", Count: len(c.Kept), Bytes: c.Coming, Note: "blobs in part, and what is kept for a retry"}
	for n, k := range c.Kept {
		s.Reclaimable += k.Bytes
		if n < maxNamed {
			s.Note += fmt.Sprintf("; of %s until %s (%s)", k.Ref, k.Until.Format(time.TimeOnly), k.Reason)
		}
	}
	s.Bytes = max(s.Bytes, s.Reclaimable)
	return s
}

// maxNamed is how many references the note of a share has.
const maxNamed = 3

func (s *Share) add(l Layer) {
	s.Bytes += l.Size
	if !l.Measured {
		s.Unknown++
	}
}

// PruneOptions choose the images that Prune removes.
type PruneOptions struct {
	DryRun    bool          // remove nothing, and return the images that would be removed
	OlderThan time.Duration // leave images that came to this node since
	Used      Usages
}

// Pruned lists the images that Prune has removed, or would remove.
type Pruned struct {
	Images []PrunedImage `json:"images"`
	Bytes  int64         `json:"bytes"` // that are given back
	// Kept is how many of the bytes pulls that were cut off had left for the next ones.
	Kept int64 `json:"kept"`
	// Pinned, Used and Young count the images that stay, by the first of these reasons.
	Pinned int `json:"pinned"`
	Used   int `json:"used"`
	Young  int `json:"young"`
}

// PrunedImage is an image that was removed, or would be.
type PrunedImage struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
	Bytes int64    `json:"bytes"` // that are given back, once those before it are removed
	Error string   `json:"error,omitempty"`
}

// Prune removes the blobs of pulls that were cut off, and the images that nothing uses, that are
// not pinned, not being pulled, and older than an age. It goes on when one cannot be removed.
func (s *Service) Prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	c, err := s.backend.Contents(ctx)
	if err != nil {
		return Pruned{}, fmt.Errorf("prune images: %w", err)
	}
	out := Pruned{Images: []PrunedImage{}}
	users, now := o.Used(), time.Now()
	for _, k := range c.Kept {
		out.Kept += k.Bytes
	}
	if !o.DryRun && len(c.Kept) > 0 {
		if err := s.backend.DropKept(ctx); err != nil {
			return Pruned{}, fmt.Errorf("prune images: %w", err)
		}
	}
	out.Bytes = out.Kept
	var gone []string
	for _, i := range s.images() {
		switch {
		case i.Pinned:
			out.Pinned++
			continue
		case len(users[i.ID]) > 0:
			out.Used++
			continue
		case i.Created.IsZero() || now.Sub(i.Created) < o.OlderThan || s.isComing(i):
			out.Young++
			continue
		}
		p := PrunedImage{
			ID:    i.ID,
			Names: append(append([]string{}, i.Tags...), i.Digests...),
			Bytes: c.frees(append(gone, i.ID)...) - c.frees(gone...),
		}
		if !o.DryRun {
			if ctx.Err() != nil {
				return out, fmt.Errorf("prune images: %w", ctx.Err())
			}
			if len(o.Used()[i.ID]) > 0 { // since it was looked at first
				out.Used++
				continue
			}
			if err := s.remove(ctx, i); err != nil && !errdefs.IsNotFound(err) {
				p.Error, p.Bytes = err.Error(), 0
			}
		}
		if p.Error == "" {
			gone = append(gone, i.ID)
		}
		out.Bytes += p.Bytes
		out.Images = append(out.Images, p)
	}
	return out, nil
}

// isComing reports whether a name of an image is being pulled.
func (s *Service) isComing(i Image) bool {
	return slices.ContainsFunc(append(append([]string{}, i.Tags...), i.Digests...), func(name string) bool {
		_, pulled := s.transfers.of(name)
		return pulled
	})
}
