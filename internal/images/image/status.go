// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Resolve finds an image by ID, by the beginning of one (of at least 4 digits), or by name.
// ErrNotFound names the image.
func (l *loaded) Resolve(ref string) (Image, error) {
	if ref == "" {
		return Image{}, fmt.Errorf("no image was named: %w", errdefs.ErrInvalidArgument)
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	x := &l.mu.index
	for _, id := range []string{ref, "sha256:" + ref} {
		if i, ok := x.byID[id]; ok {
			return i, nil
		}
	}
	if name, err := Normalize(ref); err == nil {
		if i, ok := x.named(name); ok {
			return i, nil
		}
	}
	var found []Image
	if hex := strings.TrimPrefix(ref, "sha256:"); len(hex) >= 4 {
		for id, i := range x.byID {
			if strings.HasPrefix(id, "sha256:"+hex) {
				found = append(found, i)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		if archive := l.arrivals.archive(ref); archive != "" {
			return Image{}, fmt.Errorf("image %q is being imported from %s and not on this node yet: %w", ref, archive, errdefs.ErrNotFound)
		}
		return Image{}, fmt.Errorf("image %q is not on this node; pull or import it: %w", ref, errdefs.ErrNotFound)
	default:
		return Image{}, fmt.Errorf("image %q: %d images have IDs that begin so: %w", ref, len(found), errdefs.ErrInvalidArgument)
	}
}

// Name returns the name that the status of a container shows for the image with an ID: the one that
// its user asked for, if it is a name of the image, else the image's first tag, else its first repo
// digest, else, when the image has no name any more, the ID. It is asked at each status, so that a
// tag that was moved to another image is no longer shown.
func (l *loaded) Name(id, asked string) string {
	l.mu.RLock()
	i, ok := l.mu.index.byID[id]
	l.mu.RUnlock()
	switch {
	case !ok:
		return id
	case len(i.Tags)+len(i.Digests) > 1: // else there is nothing to choose, nor to parse
		if name, err := Normalize(asked); err == nil && (slices.Contains(i.Tags, name) || slices.Contains(i.Digests, name)) {
			return name
		}
	}
	return i.Title()
}

// Normalize completes a reference as users write it: busybox is docker.io/library/busybox:latest.
func Normalize(ref string) (string, error) {
	n, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w: %w", ref, err, errdefs.ErrInvalidArgument)
	}
	return n.String(), nil
}

// List lists images, or the one that the filter's reference names.
func (l *loaded) List(f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if ref := f.GetImage().GetImage(); ref != "" {
		i, err := l.Resolve(ref)
		if errdefs.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []*runtimeapi.Image{message(i)}, nil
	}
	l.mu.RLock()
	list := make([]*runtimeapi.Image, 0, len(l.mu.index.byID))
	for _, i := range l.mu.index.byID {
		list = append(list, message(i))
	}
	l.mu.RUnlock()
	slices.SortFunc(list, func(a, b *runtimeapi.Image) int { return strings.Compare(a.Id, b.Id) })
	return list, nil
}

// Status returns one image, or nil when it is not there.
func (l *loaded) Status(ref string) (*runtimeapi.Image, *Image, error) {
	i, err := l.Resolve(ref)
	if errdefs.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return message(i), &i, nil
}

func message(i Image) *runtimeapi.Image {
	m := &runtimeapi.Image{
		Id:          i.ID,
		RepoTags:    i.Tags,
		RepoDigests: i.Digests,
		Size:        uint64(max(i.Size, 0)),
		Pinned:      i.Pinned,
		Spec:        &runtimeapi.ImageSpec{Image: i.ID},
	}
	user, _, _ := strings.Cut(i.Config.User, ":")
	if uid, err := strconv.ParseUint(user, 10, 32); err == nil {
		m.Uid = &runtimeapi.Int64Value{Value: int64(uid)}
	} else {
		m.Username = user
	}
	return m
}
