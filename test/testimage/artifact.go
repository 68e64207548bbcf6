// SPDX-License-Identifier: Apache-2.0

package testimage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Blob is a layer of an OCI artifact.
type Blob struct {
	Title       string // its name; "" for none. Nothing is checked.
	MediaType   string // application/octet-stream if it is ""
	Annotations map[string]string
	Body        []byte
}

// ArtifactConfig describes an artifact besides its layers.
type ArtifactConfig struct {
	Type       string // artifactType; "" for none
	ConfigType string // media type of the configuration; the empty one if it is ""
	Config     []byte // {} if it is nil
}

// Artifact returns an OCI artifact, as something that can be pushed to a registry and written to an
// archive.
func Artifact(cfg ArtifactConfig, layers ...Blob) (v1.Image, error) {
	if cfg.ConfigType == "" {
		cfg.ConfigType = ocispec.MediaTypeEmptyJSON
	}
	if cfg.Config == nil {
		cfg.Config = []byte("{}")
	}
	a := &artifact{config: cfg.Config, blobs: map[v1.Hash]blob{}}
	m := v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		ArtifactType:  cfg.Type,
		Layers:        []v1.Descriptor{},
	}
	d, err := a.add(cfg.Config, types.MediaType(cfg.ConfigType))
	if err != nil {
		return nil, err
	}
	m.Config = d
	for _, l := range layers {
		kind := types.MediaType(l.MediaType)
		if kind == "" {
			kind = "application/octet-stream"
		}
		d, err := a.add(l.Body, kind)
		if err != nil {
			return nil, err
		}
		d.Annotations = maps.Clone(l.Annotations)
		if l.Title != "" {
			if d.Annotations == nil {
				d.Annotations = map[string]string{}
			}
			d.Annotations[ocispec.AnnotationTitle] = l.Title
		}
		m.Layers = append(m.Layers, d)
	}
	if a.manifest, err = json.Marshal(m); err != nil {
		return nil, fmt.Errorf("make artifact: %w", err)
	}
	return partial.CompressedToImage(a)
}

// artifact is a registry's data of an artifact.
type artifact struct {
	manifest, config []byte
	blobs            map[v1.Hash]blob
}

func (a *artifact) add(body []byte, kind types.MediaType) (v1.Descriptor, error) {
	h, size, err := v1.SHA256(bytes.NewReader(body))
	if err != nil {
		return v1.Descriptor{}, err
	}
	a.blobs[h] = blob{h, kind, body}
	return v1.Descriptor{MediaType: kind, Digest: h, Size: size}, nil
}

// RawManifest returns the manifest.
func (a *artifact) RawManifest() ([]byte, error) { return a.manifest, nil }

// RawConfigFile returns the configuration, which is not that of an image.
func (a *artifact) RawConfigFile() ([]byte, error) { return a.config, nil }

// MediaType returns the media type of the manifest.
func (a *artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest returns a blob.
func (a *artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	b, ok := a.blobs[h]
	if !ok {
		return nil, fmt.Errorf("no blob %s", h)
	}
	return b, nil
}

type blob struct {
	digest v1.Hash
	kind   types.MediaType
	body   []byte
}

// Digest returns the digest of the blob.
func (b blob) Digest() (v1.Hash, error) { return b.digest, nil }

// Compressed returns the blob as it is in a registry.
func (b blob) Compressed() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.body)), nil }

// Size returns how many bytes it has.
func (b blob) Size() (int64, error) { return int64(len(b.body)), nil }

// MediaType returns its type.
func (b blob) MediaType() (types.MediaType, error) { return b.kind, nil }
