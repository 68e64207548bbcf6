// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// annotationFilepath is the annotation of a layer's name in the specification of models
// (ModelPack).
const annotationFilepath = "org.cncf.model.filepath"

const (
	// maxEntries bounds the files and directories of an artifact together.
	maxEntries = 1 << 16
	// maxName and maxElement bound a path and a name in it, in bytes, as Linux does. The path
	// leaves room for the directory that it is in.
	maxName, maxElement = 2048, 255
)

// imageConfigs are the media types of the configuration of an image that can be run. That of an
// early image may be missing.
var imageConfigs = []string{
	"",
	ocispec.MediaTypeImageConfig,
	"application/vnd.docker.container.image.v1+json",
	"application/octet-stream", // of an early Docker image
}

// File is a file of an artifact.
type File struct {
	Name string // with slashes between its directories; clean and relative
	Blob ocispec.Descriptor
}

// Is reports whether a manifest is that of an artifact: it has no configuration of an image, or it
// says that it is one with a field artifactType. A manifest with that field and the configuration
// of an image is an image all the same unless one of its layers has a name.
func Is(m ocispec.Manifest) bool {
	if !slices.Contains(imageConfigs, m.Config.MediaType) {
		return true
	}
	return m.ArtifactType != "" && slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool { return name(l) != "" })
}

// Type is the type of an artifact: its artifactType, or else the media type of its configuration.
func Type(m ocispec.Manifest) string {
	if m.ArtifactType != "" {
		return m.ArtifactType
	}
	return m.Config.MediaType
}

// ChainID is the name of the layer that the files of an artifact are laid out in. It has the form
// of an image's chain ID, and is that of no image. Another layout would get another name.
func ChainID(manifest digest.Digest) string {
	return digest.FromString("berth artifact 1 " + manifest.String()).String()
}

// name is the name that a layer has; "" for none.
func name(l ocispec.Descriptor) string {
	if n := l.Annotations[ocispec.AnnotationTitle]; n != "" {
		return n
	}
	return l.Annotations[annotationFilepath]
}

// Files returns the files of an artifact, in the order of its layers. ErrInvalidArgument names the
// layer that cannot be a file, and says why.
func Files(m ocispec.Manifest) ([]File, error) {
	var files []File
	layers := map[string]digest.Digest{} // by the name of the file
	dirs := map[string]bool{}
	for _, l := range m.Layers {
		raw := name(l)
		if raw == "" {
			continue
		}
		refuse := func(why string, args ...any) error {
			return fmt.Errorf("layer %s of the artifact has the name %q, %s: %w", l.Digest, shorten(raw), fmt.Sprintf(why, args...), errdefs.ErrInvalidArgument)
		}
		clean, why := check(raw)
		if why != "" {
			return nil, refuse("%s", why)
		}
		if err := l.Digest.Validate(); err != nil || l.Size < 0 {
			return nil, refuse("and is not a blob (%d bytes)", l.Size)
		}
		if other, taken := layers[clean]; taken {
			return nil, refuse("which layer %s has as well", other)
		}
		layers[clean] = l.Digest
		for dir := path.Dir(clean); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
		}
		if len(layers)+len(dirs) > maxEntries {
			return nil, fmt.Errorf("the artifact has more than %d files and directories: %w", maxEntries, errdefs.ErrInvalidArgument)
		}
		files = append(files, File{Name: clean, Blob: l})
	}
	for _, f := range files {
		if dirs[f.Name] {
			return nil, fmt.Errorf("layer %s of the artifact has the name %q, which is a directory of another layer: %w", f.Blob.Digest, f.Name, errdefs.ErrInvalidArgument)
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no layer of the artifact has a name in the annotation %s, so that none can be mounted: %w", ocispec.AnnotationTitle, errdefs.ErrInvalidArgument)
	}
	return files, nil
}

// check cleans a name, or says why it cannot be one.
func check(raw string) (clean, why string) {
	switch {
	case strings.HasPrefix(raw, "/"):
		return "", "which is absolute"
	case slices.Contains(strings.Split(raw, "/"), ".."):
		return "", `which has ".." in it`
	case strings.HasSuffix(raw, "/"):
		return "", "which is that of a directory"
	case strings.ContainsFunc(raw, func(r rune) bool { return unicode.IsControl(r) || r == unicode.ReplacementChar }):
		return "", "which has a character in it that a name must not have"
	case len(raw) > maxName:
		return "", fmt.Sprintf("which is longer than %d bytes", maxName)
	}
	clean = path.Clean(raw)
	if clean == "." {
		return "", "which is that of a directory"
	}
	for element := range strings.SplitSeq(clean, "/") {
		if len(element) > maxElement {
			return "", fmt.Sprintf("of which a part is longer than %d bytes", maxElement)
		}
	}
	return clean, ""
}

// shorten keeps a message short.
func shorten(s string) string {
	const most = 100
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// Size returns how many bytes an artifact has in its registry without its manifest. A blob that it
// has several times counts once.
func Size(m ocispec.Manifest) (n int64) {
	seen := map[digest.Digest]bool{}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if !seen[d.Digest] {
			seen[d.Digest] = true
			n += max(d.Size, 0)
		}
	}
	return n
}
