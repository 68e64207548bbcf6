// SPDX-License-Identifier: Apache-2.0

package testimage

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of everything in an image.
var epoch = time.Unix(0, 0).UTC()

// File is one entry of a layer. Nothing is checked or cleaned: images that try
// to break out of their root are built from it as well.
type File struct {
	Name string // slash-separated, no leading slash
	// Mode holds the permission bits, fs.ModeDir for a directory, fs.ModeSymlink for a symbolic
	// link, fs.ModeNamedPipe for a FIFO, fs.ModeDevice|fs.ModeCharDevice for a character device,
	// and fs.ModeSetuid, fs.ModeSetgid and fs.ModeSticky.
	Mode         fs.FileMode
	UID, GID     int
	Body         []byte
	Target       string // of a symbolic link; with any other Mode, of a hard link
	Major, Minor int64  // of a device
}

// Layer returns a gzip-compressed OCI layer with the files in that order.
func Layer(files ...File) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{
			Format: tar.FormatPAX, // so that large owner numbers fit
			Name:   f.Name, Mode: tarMode(f.Mode), Uid: f.UID, Gid: f.GID,
			ModTime: epoch, Linkname: f.Target, Devmajor: f.Major, Devminor: f.Minor,
		}
		switch {
		case f.Mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, f.Name+"/"
		case f.Mode&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
		case f.Mode&fs.ModeCharDevice != 0:
			h.Typeflag = tar.TypeChar
		case f.Mode&fs.ModeNamedPipe != 0:
			h.Typeflag = tar.TypeFifo
		case f.Target != "":
			h.Typeflag = tar.TypeLink
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Body))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("make layer: file %s: %w", f.Name, err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(f.Body); err != nil {
				return nil, fmt.Errorf("make layer: file %s: %w", f.Name, err)
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return layer, nil
}

// tarMode turns a mode into the twelve bits of a tar header.
func tarMode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for flag, bit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&flag != 0 {
			bits |= bit
		}
	}
	return bits
}

// Image returns an OCI image for this machine's architecture.
func Image(cfg v1.Config, layers ...v1.Layer) (v1.Image, error) {
	return imageFor(runtime.GOARCH, cfg, layers...)
}

func imageFor(arch string, cfg v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", arch, cfg
	file.Created = v1.Time{Time: epoch}
	img, err = mutate.ConfigFile(img, file)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	return img, nil
}
