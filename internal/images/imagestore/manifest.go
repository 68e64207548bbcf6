// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/artifact"
)

// schemaVersion is that of every manifest. A configuration has none.
const schemaVersion = 2

// errArtifact stops a pull that unpacks, because the image is an artifact.
var errArtifact = errors.New("it is an artifact, which has no layers to be unpacked")

// manifestForNode is the manifest of an image for this node.
type manifestForNode struct {
	ocispec.Manifest
	desc       ocispec.Descriptor // of the manifest; the zero value where there is none
	checkpoint bool               // it, or an index that it is in, says that it holds a checkpoint
}

func (m *manifestForNode) isArtifact() bool { return m.desc.Digest != "" && artifact.Is(m.Manifest) }

// manifestOf returns the manifest of a target, which may be an index, for this node.
func manifestOf(ctx context.Context, cs content.Provider, target ocispec.Descriptor) (*manifestForNode, error) {
	m := &manifestForNode{}
	desc := target
	for range maxDepth {
		if !images.IsIndexType(desc.MediaType) {
			break
		}
		var index ocispec.Index
		if err := readInto(ctx, cs, desc, &index); err != nil {
			return nil, err
		}
		m.checkpoint = m.checkpoint || isCheckpoint(index.Annotations)
		var ok bool
		if desc, ok = forThisNode(index.Manifests); !ok {
			return m, nil
		}
	}
	if !images.IsManifestType(desc.MediaType) {
		return m, nil
	}
	if err := readInto(ctx, cs, desc, &m.Manifest); err != nil {
		return nil, err
	}
	m.desc = desc
	m.checkpoint = !m.isArtifact() && (m.checkpoint || isCheckpoint(m.Annotations))
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// check refuses an artifact or a checkpoint whose manifest does not say that it is one: it could be
// the configuration of an image as well, which has the same digest, and so the same ID.
func (m *manifestForNode) check() error {
	if m.SchemaVersion != schemaVersion && (m.checkpoint || m.isArtifact()) {
		return fmt.Errorf("manifest %s has the schemaVersion %d and not %d: %w",
			m.desc.Digest, m.SchemaVersion, schemaVersion, errdefs.ErrInvalidArgument)
	}
	return nil
}

// forThisNode returns the manifest of an index that suits this node best, as containerd's client
// chooses it for a pull. One that names no platform suits every node, and comes last.
func forThisNode(all []ocispec.Descriptor) (best ocispec.Descriptor, ok bool) {
	platform := platforms.Default()
	for _, d := range all {
		switch {
		case d.Platform != nil && !platform.Match(*d.Platform):
		case !ok, best.Platform == nil && d.Platform != nil,
			best.Platform != nil && d.Platform != nil && platform.Less(*d.Platform, *best.Platform):
			best, ok = d, true
		}
	}
	return best, ok
}

// readInto reads a manifest or an index.
func readInto(ctx context.Context, cs content.Provider, desc ocispec.Descriptor, v any) error {
	b, err := content.ReadBlob(ctx, cs, desc)
	if err != nil {
		return connection.Native(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// parsed describes an artifact for the image service.
func (m *manifestForNode) parsed(target ocispec.Descriptor) parsed {
	size := artifact.Size(m.Manifest) + m.desc.Size
	if target.Digest != m.desc.Digest {
		size += target.Size
	}
	return parsed{
		id:       m.desc.Digest,
		chainID:  artifact.ChainID(m.desc.Digest),
		size:     size,
		artifact: cmp.Or(artifact.Type(m.Manifest), "unknown"),
	}
}

// maxDepth bounds how far the indexes of an image are followed.
const maxDepth = 8

// checkpointPrefixes begin the annotations of an image that holds a checkpoint of a container: the
// first ones are those that checkpointctl and containerd use, the others CRI-O's.
var checkpointPrefixes = []string{"org.criu.checkpoint.", "io.kubernetes.cri-o.annotations.checkpoint."}

// isCheckpoint reports whether the annotations of a manifest or an index say that the image holds a
// checkpoint.
func isCheckpoint(annotations map[string]string) bool {
	for k := range annotations {
		for _, prefix := range checkpointPrefixes {
			if strings.HasPrefix(k, prefix) {
				return true
			}
		}
	}
	return false
}
