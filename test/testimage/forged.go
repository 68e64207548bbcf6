// SPDX-License-Identifier: Apache-2.0

package testimage

import (
	"encoding/json"
	"maps"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// Forged returns an image whose manifest claims the configuration of another image for layers and
// annotations of its own.
func Forged(of v1.Image, annotations map[string]string, layers ...v1.Layer) (v1.Image, error) {
	m, err := of.Manifest()
	if err != nil {
		return nil, err
	}
	m = m.DeepCopy()
	m.Annotations, m.Layers = maps.Clone(annotations), nil
	for _, l := range layers {
		d, err := partial.Descriptor(l)
		if err != nil {
			return nil, err
		}
		m.Layers = append(m.Layers, *d)
	}
	raw, err := json.Marshal(m)
	return &forged{of, m, raw, layers}, err
}

type forged struct {
	v1.Image
	manifest *v1.Manifest
	raw      []byte
	layers   []v1.Layer
}

// RawManifest implements v1.Image, as the methods below do.
func (f *forged) RawManifest() ([]byte, error) { return f.raw, nil }

// Manifest returns the forged manifest.
func (f *forged) Manifest() (*v1.Manifest, error) { return f.manifest, nil }

// Digest returns the digest of the forged manifest.
func (f *forged) Digest() (v1.Hash, error) { return partial.Digest(f) }

// Size returns the size of the forged manifest.
func (f *forged) Size() (int64, error) { return int64(len(f.raw)), nil }

// Layers returns the layers that were given.
func (f *forged) Layers() ([]v1.Layer, error) { return f.layers, nil }
