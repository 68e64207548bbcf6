// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/base/processors"
)

// lookTimeout bounds one attempt to list the items without the mark.
const lookTimeout = time.Minute

// maxBlob is how large a manifest, an index or a configuration may be, in bytes. containerd's
// client reads each of them whole. Registries take manifests of up to 4 MiB.
const maxBlob = 8 << 20

// boundedStore is a content store that refuses to have a large blob read whole. The size of the
// blob counts, and not that in a descriptor, because a manifest may name a layer that exists as its
// configuration.
type boundedStore struct {
	content.Store
	early    *earlyBlobs
	arriving *arriving // the layers that a pull fetches
	senders  *senders  // who sends the blobs of a pull
	// room returns an error if a blob with so many bytes to come has no room. It may be nil.
	room func(ctx context.Context, size int64) error
}

// ReaderAt opens a blob.
func (s boundedStore) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := s.Store.ReaderAt(ctx, desc)
	if err != nil || r.Size() <= maxBlob {
		return r, err
	}
	return largeBlob{r, desc}, nil
}

// Writer begins a blob, or continues one.
func (s boundedStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	w, err := s.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	if s.room != nil {
		st, err := w.Status()
		if err == nil {
			err = s.room(ctx, o.Desc.Size-st.Offset)
		}
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return blobWriter{w, s, o, s.arriving.writes(o.Desc, o.Ref, w)}, nil
}

// blobWriter writes a blob that begins anew after a commit that has failed. The kernel reports a
// failed write only once: a writer that continued the blob would sync it with success and without
// its data.
type blobWriter struct {
	content.Writer
	store   boundedStore
	of      content.WriterOpts
	arrival *arrival // nil for anything but a layer that arrives
}

// Write writes the next bytes. They are hashed here, or sent to the containerd that hashes them:
// all other work goes first.
func (w blobWriter) Write(p []byte) (n int, err error) {
	processors.Behind(func() { n, err = w.Writer.Write(p) })
	w.store.early.wrote(n)
	w.arrival.wrote(n)
	return n, err
}

// Commit ends the blob.
func (w blobWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	err := w.Writer.Commit(ctx, size, expected, opts...)
	if err == nil || errdefs.IsAlreadyExists(connection.Native(err)) {
		return err
	}
	if errdefs.IsFailedPrecondition(connection.Native(err)) {
		w.store.senders.liar(w.of.Desc.Digest)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	w.Close()
	if aborting := connection.Native(w.store.Abort(ctx, w.of.Ref)); aborting != nil && !errdefs.IsNotFound(aborting) {
		err = errors.Join(err, fmt.Errorf("discard what was written: %w", aborting))
	}
	return err
}

// largeBlob lets parts of itself be read. Its size is one byte more than the bound, which keeps the
// buffer small, and reading into that buffer is an error.
type largeBlob struct {
	content.ReaderAt
	desc ocispec.Descriptor
}

// Size returns one more than the bound.
func (b largeBlob) Size() int64 { return maxBlob + 1 }

// ReadAt reads at most maxBlob bytes.
func (b largeBlob) ReadAt(p []byte, off int64) (int, error) {
	if len(p) > maxBlob {
		return 0, fmt.Errorf("blob %s has %d bytes, more than the %d of a manifest or a configuration: %w",
			b.desc.Digest, b.ReaderAt.Size(), maxBlob, errdefs.ErrInvalidArgument)
	}
	return b.ReaderAt.ReadAt(p, off)
}
