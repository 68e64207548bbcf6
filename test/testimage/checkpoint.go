// SPDX-License-Identifier: Apache-2.0

package testimage

import (
	"bytes"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations by which users and tools mark an image that holds a checkpoint.
const (
	CheckpointOfCRIO = "io.kubernetes.cri-o.annotations.checkpoint.name"
	CheckpointOfCRIU = "org.criu.checkpoint.container.name"
)

// Checkpoint returns an image with the archive of a checkpoint as its layer and an annotation of
// its manifest, as buildah makes one from scratch.
func Checkpoint(archive []byte, annotation string) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	img, err := Image(v1.Config{}, layer)
	if err != nil {
		return nil, err
	}
	annotated, ok := mutate.Annotations(img, map[string]string{annotation: "c"}).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("annotate %s: it is no image", annotation)
	}
	return annotated, nil
}
