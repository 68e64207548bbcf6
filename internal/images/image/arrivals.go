// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/ops"
)

// arrivals are the images of archives that are to be imported, by their normalized names. The zero
// value is ready.
type arrivals struct {
	mu sync.Mutex
	by map[string]*arrival
}

// arrival is an archive that is to be imported.
type arrival struct {
	path   string
	done   chan struct{} // closed once it was imported, or was found to be bad
	wanted bool          // a pull waits for it; guarded by arrivals.mu
}

// announce notes that an archive with images of these names is to be imported. over must be called
// once it was, or cannot be.
func (as *arrivals) announce(path string, names []string) (a *arrival, over func()) {
	a = &arrival{path: path, done: make(chan struct{})}
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.by == nil {
		as.by = map[string]*arrival{}
	}
	for _, name := range names {
		if as.by[name] == nil { // the first of several archives
			as.by[name] = a
		}
	}
	return a, func() {
		as.mu.Lock()
		defer as.mu.Unlock()
		for name, b := range as.by {
			if a == b {
				delete(as.by, name)
			}
		}
		close(a.done)
	}
}

// want returns the archive that has an image and is to be imported, and has it imported next; nil
// if there is none.
func (as *arrivals) want(name string) *arrival {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.by[name]
	if a != nil {
		a.wanted = true
	}
	return a
}

// wanted reports whether a pull waits for an archive.
func (as *arrivals) wanted(a *arrival) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	return a.wanted
}

// archive returns the path of the archive that has an image and is to be imported, or "".
func (as *arrivals) archive(ref string) string {
	name, err := Normalize(ref)
	if err != nil {
		return ""
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.by[name]; a != nil {
		return a.path
	}
	return ""
}

// awaitArchive waits until the archive that has the image of a pull, if there is one, was imported
// or found to be bad.
func (s *Service) awaitArchive(ctx context.Context, t *transfer) error {
	a := s.arrivals.want(t.name)
	if a == nil {
		return nil
	}
	t.waitsFor(a.path)
	defer t.waitsFor("")
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "the archive " + a.path + " to be imported, which has the image"})
	defer op.End()
	select {
	case <-a.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	// maxPeeked bounds how many files of an archive are looked at, and maxListed how many bytes its
	// lists of images may have.
	maxPeeked = 1 << 16
	maxListed = 8 << 20
)

// peek returns the normalized names of the images in an archive that is not compressed, from its
// lists alone: the layers are skipped. An archive that it cannot read has none, and the import says
// why.
func peek(file string) (names []string) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	r := tar.NewReader(f)
	for range maxPeeked {
		h, err := r.Next()
		if err != nil {
			return names
		}
		switch path.Clean(h.Name) {
		case "manifest.json":
			var list []struct{ RepoTags []string }
			if decode(r, &list) == nil {
				for _, i := range list {
					names = append(names, normalized(i.RepoTags)...)
				}
			}
		case ocispec.ImageIndexFile:
			var index ocispec.Index
			if decode(r, &index) == nil {
				for _, m := range index.Manifests {
					if name, err := ArchiveName(m.Annotations); err == nil {
						names = append(names, name)
					}
				}
			}
		}
	}
	return names
}

func decode(r io.Reader, v any) error {
	b, err := io.ReadAll(io.LimitReader(r, maxListed+1))
	if err != nil {
		return err
	}
	if len(b) > maxListed {
		return fmt.Errorf("more than %d bytes", maxListed)
	}
	return json.Unmarshal(b, v)
}

// annotationName is the annotation by which containerd and BuildKit name an image of an archive.
const annotationName = "io.containerd.image.name"

// ArchiveName returns the complete name of an image in an OCI archive, by the annotations of its
// descriptor. The name of the layout itself may be the tag alone: then the image has no name.
// ErrInvalidArgument is returned with the reason.
func ArchiveName(annotations map[string]string) (string, error) {
	name, ref := annotations[annotationName], annotations[ocispec.AnnotationRefName]
	switch {
	case name != "":
	case strings.ContainsAny(ref, "/:@"):
		name = ref
	case ref != "":
		return "", fmt.Errorf("it has the tag %.128q and no name: %w", ref, errdefs.ErrInvalidArgument)
	default:
		return "", fmt.Errorf("it has no name: %w", errdefs.ErrInvalidArgument)
	}
	full, err := Normalize(name)
	if err != nil {
		return "", fmt.Errorf("it has no name that can be used: %w", err)
	}
	return full, nil
}

// normalized returns those of the names that are references, as they are stored.
func normalized(refs []string) (names []string) {
	for _, ref := range refs {
		if name, err := Normalize(ref); err == nil {
			names = append(names, name)
		}
	}
	return names
}
