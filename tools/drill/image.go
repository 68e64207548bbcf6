// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// writeImage writes an archive of an image in the OCI layout that has nothing but the directories
// in which things are mounted: the program comes from the host.
func writeImage(path, ref string) error {
	layer, err := archive(func(w *tar.Writer) error {
		for _, name := range []string{"dev/", "etc/", "proc/", "sys/", "tmp/"} {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	blobs := map[digest.Digest][]byte{}
	add := func(kind string, b []byte) v1.Descriptor {
		d := digest.FromBytes(b)
		blobs[d] = b
		return v1.Descriptor{MediaType: kind, Digest: d, Size: int64(len(b))}
	}
	platform := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	l := add(v1.MediaTypeImageLayer, layer)
	image, err := json.Marshal(v1.Image{Platform: platform, RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{l.Digest}}})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    add(v1.MediaTypeImageConfig, image),
		Layers:    []v1.Descriptor{l},
	})
	if err != nil {
		return err
	}
	m := add(v1.MediaTypeImageManifest, manifest)
	m.Platform = &platform
	m.Annotations = map[string]string{v1.AnnotationRefName: ref, "io.containerd.image.name": ref}
	index, err := json.Marshal(v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{m}})
	if err != nil {
		return err
	}
	whole, err := archive(func(w *tar.Writer) error {
		files := map[string][]byte{v1.ImageLayoutFile: []byte(`{"imageLayoutVersion":"1.0.0"}`), v1.ImageIndexFile: index}
		for d, b := range blobs {
			files["blobs/sha256/"+d.Encoded()] = b
		}
		for name, b := range files {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: time.Unix(0, 0)}); err != nil {
				return err
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, whole, 0o600)
}

func archive(write func(w *tar.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := write(w); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
