// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/internal/images/peer"
)

// maxServed bounds the cache of the blobs that each image consists of, in bytes.
const maxServed = 4 << 20

// members are the blobs that an image consists of, and the media types of manifests and indexes; ""
// for another blob.
type members map[digest.Digest]string

// served decides which blobs peers may be given.
type served struct {
	*core
	names      *Names
	durability *Durability
	images     *image.Cache[members] // by the digest of the image's target

	mu    sync.Mutex
	pulls map[*sharing]bool
}

// sharing is a pull whose blobs peers may be given as they come.
type sharing struct {
	of         *served
	repository string
	blobs      members
}

// share begins to share the blobs of a pull. The caller calls over.
func (s *served) share(repository string) *sharing {
	p := &sharing{s, repository, members{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulls == nil {
		s.pulls = map[*sharing]bool{}
	}
	s.pulls[p] = true
	return p
}

// add notes the blobs of the image, as they become known.
func (p *sharing) add(descs ...ocispec.Descriptor) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	for _, d := range descs {
		p.blobs.add(d)
	}
}

func (p *sharing) over() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.pulls, p)
}

func (m members) add(d ocispec.Descriptor) {
	m[d.Digest] = ""
	if images.IsManifestType(d.MediaType) || images.IsIndexType(d.MediaType) {
		m[d.Digest] = d.MediaType
	}
}

// pulled reports whether a pull of a repository that goes on has a blob in its image.
func (s *served) pulled(repository string, d digest.Digest) (mediaType string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.pulls {
		if p.repository == repository {
			if mediaType, ok = p.blobs[d]; ok {
				return mediaType, true
			}
		}
	}
	return "", false
}

// Open implements peer.Contents. As long as anything is doubted after a power cut, nothing is
// given.
func (s *served) Open(ctx context.Context, repository string, d digest.Digest) (peer.Content, error) {
	ctx = connection.Namespaced(ctx)
	if s.durability.Doubts() > 0 {
		return peer.Content{}, fmt.Errorf("images are checked after an unclean boot: %w", errdefs.ErrUnavailable)
	}
	mediaType, ok := s.pulled(repository, d)
	if !ok {
		var err error
		if mediaType, ok, err = s.listed(ctx, repository, d); err != nil {
			return peer.Content{}, err
		}
	}
	if !ok {
		return peer.Content{}, errdefs.ErrNotFound
	}
	r, err := s.client.ContentStore().ReaderAt(ctx, ocispec.Descriptor{Digest: d})
	if err != nil {
		return peer.Content{}, connection.Native(err) // not found where layers are not kept, or not here yet
	}
	return peer.Content{ReaderAt: r, Closer: r, Size: r.Size(), MediaType: mediaType}, nil
}

// listed reports whether an image of a repository has a blob.
func (s *served) listed(ctx context.Context, repository string, d digest.Digest) (mediaType string, ok bool, err error) {
	all, err := s.client.ImageService().List(ctx)
	if err != nil {
		return "", false, connection.Native(err)
	}
	for _, img := range all {
		if of := repositoryOf(img.Name); of == "" || of != repository {
			continue
		}
		m, err := s.membersOf(ctx, img)
		if err != nil {
			return "", false, err
		}
		if mediaType, ok = m[d]; ok {
			return mediaType, true, nil
		}
	}
	return "", false, nil
}

// membersOf returns the blobs of an image that are here.
func (s *served) membersOf(ctx context.Context, img images.Image) (members, error) {
	key := img.Target.Digest.String()
	if m, ok := s.images.Get(key); ok {
		return m, nil
	}
	return image.Contain(s.cfg.Logger, s.cfg.Panicked, img.Name, func() (members, error) {
		m := members{}
		if err := s.names.eachPart(ctx, img.Target, maxDepth, m.add); err != nil {
			return nil, err
		}
		s.images.Put(key, m, len(m)*128)
		return m, nil
	})
}

// repositoryOf returns the repository of an image's name, with the host of its registry; "" for a
// name that is an ID.
func repositoryOf(name string) string {
	if _, err := digest.Parse(name); err == nil {
		return ""
	}
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return ""
	}
	return reference.Domain(named) + "/" + reference.Path(named)
}
