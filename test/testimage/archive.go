// SPDX-License-Identifier: Apache-2.0

package testimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// WriteOCIArchive writes images side by side as an OCI image layout in a tar file at path. ref is
// the full name that each is imported under, such as berth.test/demo/busybox:1.
func WriteOCIArchive(path, ref string, imgs ...v1.Image) error {
	if err := create(path, func(w io.Writer) error { return writeLayout(w, ref, imgs) }); err != nil {
		return fmt.Errorf("write OCI archive %s: %w", path, err)
	}
	return nil
}

// WriteDockerArchive writes img as `docker save` does, to a tar file at path. ref
// is a full name with a tag.
func WriteDockerArchive(path, ref string, img v1.Image) error {
	err := create(path, func(w io.Writer) error {
		tag, err := name.NewTag(ref, name.StrictValidation)
		if err != nil {
			return err
		}
		return tarball.Write(tag, img, w)
	})
	if err != nil {
		return fmt.Errorf("write Docker archive %s: %w", path, err)
	}
	return nil
}

// create writes a file that exists only if it is whole.
func create(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".archive-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func writeLayout(w io.Writer, ref string, imgs []v1.Image) error {
	tw := tar.NewWriter(w)
	written := map[string]bool{}
	add := func(name string, size int64, r io.Reader) error {
		if written[name] {
			return nil
		}
		written[name] = true
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: epoch}); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, img := range imgs {
		manifest, err := partial.Descriptor(img)
		if err != nil {
			return err
		}
		if manifest.Platform, err = platform(img); err != nil {
			return err
		}
		manifest.Annotations = map[string]string{
			// The first is the layout's own, the second is preferred by containerd.
			ocispec.AnnotationRefName:  ref,
			"io.containerd.image.name": ref,
		}
		index.Manifests = append(index.Manifests, *manifest)
	}
	list, err := json.Marshal(index)
	if err != nil {
		return err
	}
	layout := `{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`
	if err := add(ocispec.ImageLayoutFile, int64(len(layout)), strings.NewReader(layout)); err != nil {
		return err
	}
	if err := add(ocispec.ImageIndexFile, int64(len(list)), bytes.NewReader(list)); err != nil {
		return err
	}
	for n, img := range imgs {
		if err := writeBlobs(img, index.Manifests[n].Digest, add); err != nil {
			return err
		}
	}
	return tw.Close()
}

// writeBlobs adds the manifest, the configuration and the layers of an image.
func writeBlobs(img v1.Image, manifest v1.Hash, add func(name string, size int64, r io.Reader) error) error {
	raw, err := img.RawManifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	configName, err := img.ConfigName()
	if err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	if err := add(blob(manifest), int64(len(raw)), bytes.NewReader(raw)); err != nil {
		return err
	}
	if err := add(blob(configName), int64(len(config)), bytes.NewReader(config)); err != nil {
		return err
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		size, err := layer.Size()
		if err != nil {
			return err
		}
		body, err := layer.Compressed()
		if err != nil {
			return err
		}
		err = add(blob(digest), size, body)
		body.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func platform(img v1.Image) (*v1.Platform, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	return cfg.Platform(), nil
}
