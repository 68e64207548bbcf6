// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// tarred makes an archive with one file.
func tarred(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	try(t, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o600}))
	_, err := io.WriteString(w, content)
	try(t, err)
	try(t, w.Close())
	return b.Bytes()
}

func checkpointOf(t *testing.T, archive []byte, annotation string) v1.Image {
	t.Helper()
	img, err := testimage.Checkpoint(archive, annotation)
	try(t, err)
	return img
}

// archiveIn reads the archive that a checkpoint's image holds.
func archiveIn(t *testing.T, i *Store, id string) []byte {
	t.Helper()
	r, err := i.Checkpoint(t.Context(), id)
	try(t, err)
	b, err := io.ReadAll(r)
	try(t, err)
	try(t, r.Close())
	return b
}

func noLayers(t *testing.T, i *Store) {
	t.Helper()
	ctx := connection.Namespaced(t.Context())
	try(t, i.client.SnapshotService(i.cfg.Snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		t.Errorf("the layer %s was made", info.Name)
		return nil
	}))
}

// collect waits for a garbage collection of containerd's.
func collect(t *testing.T, i *Store) {
	t.Helper()
	ctx := connection.Namespaced(t.Context())
	l, err := i.client.LeasesService().Create(ctx, leases.WithRandomID())
	try(t, err)
	try(t, i.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete))
}

// PROPERTIES 32: an image that holds a checkpoint is known by its annotations, of the manifest or
// of the index, is pulled and imported without being unpacked, and keeps its layer, also where the
// layers of images are discarded.
func TestAnImageOfACheckpointIsKeptAsItIs(t *testing.T) {
	archive := tarred(t, "config.dump", "{}")
	for _, annotation := range []string{testimage.CheckpointOfCRIO, testimage.CheckpointOfCRIU} {
		for _, how := range []string{"pulled", "pulled and discarded", "imported", "imported and discarded"} {
			t.Run(annotation+" "+how, func(t *testing.T) {
				i := store(t)
				i.SetDiscard(strings.HasSuffix(how, "discarded"))
				img := checkpointOf(t, archive, annotation)
				var st image.Stored
				if strings.HasPrefix(how, "imported") {
					st = imported(t, i, img)
				} else {
					var err error
					st, err = i.Pull(t.Context(), testregistry.Start(t).Push("checkpoints/c:1", img), image.Credentials{}, "", nil)
					try(t, err)
				}
				if !st.Checkpoint || st.Artifact != "" {
					t.Errorf("%+v", st)
				}
				collect(t, i)
				if got := archiveIn(t, i, st.ID); !bytes.Equal(got, archive) {
					t.Errorf("read %d bytes of %d", len(got), len(archive))
				}
				noLayers(t, i)
			})
		}
	}
}

// An annotation of an index marks all its images, and other annotations mark none.
func TestAnIndexSaysThatItHoldsACheckpoint(t *testing.T) {
	archive := tarred(t, "config.dump", "{}")
	i := store(t)
	plainImage, err := testimage.Checkpoint(archive, "org.example.other")
	try(t, err)
	if st := imported(t, i, plainImage); st.Checkpoint {
		t.Errorf("%+v", st)
	}
	index, ok := mutate.Annotations(mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: plainImage}),
		map[string]string{testimage.CheckpointOfCRIU: "c"}).(v1.ImageIndex)
	if !ok {
		t.Fatal("no index")
	}
	ref := testregistry.Start(t).Addr + "/checkpoints/c:1"
	tag, err := name.NewTag(ref, name.Insecure)
	try(t, err)
	try(t, remote.WriteIndex(tag, index))
	st, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	try(t, err)
	if !st.Checkpoint || !bytes.Equal(archiveIn(t, i, st.ID), archive) {
		t.Errorf("an index: %+v", st)
	}
}

// PROPERTIES 32: a checkpoint that is being read stays, although its image is removed and the
// garbage collected.
func TestACheckpointThatIsReadStays(t *testing.T) {
	i := store(t)
	archive := tarred(t, "config.dump", strings.Repeat("0123456789abcdef", 1<<16))
	img := checkpointOf(t, archive, testimage.CheckpointOfCRIU)
	st := imported(t, i, img)
	r, err := i.Checkpoint(t.Context(), st.ID)
	try(t, err)
	removed(t, i, st)
	collect(t, i)
	try(t, i.Sweep(connection.Namespaced(t.Context())))
	m, err := img.Manifest()
	try(t, err)
	if _, err := i.client.ContentStore().Info(connection.Namespaced(t.Context()), digest.Digest(m.Layers[0].Digest.String())); err != nil {
		t.Errorf("what is read was collected: %v", err)
	}
	b, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(b, archive) {
		t.Errorf("read %d bytes of %d, %v", len(b), len(archive), err)
	}
	try(t, r.Close())
	left, err := i.client.LeasesService().List(connection.Namespaced(t.Context()))
	if err != nil || len(left) != 0 {
		t.Errorf("%+v %v", left, err)
	}
	if _, err := i.Checkpoint(t.Context(), st.ID); !errdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

// PROPERTIES 32: an image that holds no archive that can be read is refused by what is wrong.
func TestABadImageOfACheckpointIsRefused(t *testing.T) {
	layer, err := testimage.Layer(testimage.File{Name: "x"})
	try(t, err)
	two, err := mutate.AppendLayers(checkpointOf(t, tarred(t, "config.dump", "{}"), testimage.CheckpointOfCRIU), layer)
	try(t, err)
	torn, err := testimage.Image(v1Config(), static.NewLayer([]byte("\x1f\x8b\x08\x00 is the beginning of what is compressed"), types.OCILayer))
	try(t, err)
	torn, ok := mutate.Annotations(torn, map[string]string{testimage.CheckpointOfCRIO: "c"}).(v1.Image)
	if !ok {
		t.Fatal("no image")
	}
	for says, img := range map[string]v1.Image{"2 layers": two, "flate": torn} {
		t.Run(says, func(t *testing.T) {
			i := store(t)
			st := imported(t, i, img)
			r, err := i.Checkpoint(t.Context(), st.ID)
			if err == nil {
				_, err = io.ReadAll(r)
				try(t, r.Close())
			}
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
				t.Errorf("%v", err)
			}
		})
	}
}
