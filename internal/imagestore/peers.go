// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/connection"
	"berth/internal/peer"
)

// Peers are other nodes that may have a blob.
type Peers interface {
	Copy(ctx context.Context, b peer.Blob, offset int64, to io.Writer, progress func(n int)) (peer.Copied, error)
	Lied(b peer.Blob, from []netip.AddrPort)
}

// peerRef begins the reference under which a blob is written that comes from peers. What is below it
// may hold bytes of a peer that lies, so containerd never goes on with it when it fetches the blob
// from the registry.
const peerRef = "peer-"

var (
	// errMoved says that somebody else has written the same blob meanwhile.
	errMoved = errors.New("another pull has written the same blob")
	// errNoPeer says that a blob is left to the registry.
	errNoPeer = errors.New("no peer has sent all of it")
)

// peerFetch fetches blobs from peers before containerd fetches them from the registry.
type peerFetch struct {
	store      *Store
	repository string // with the host of its registry
	registry   func(ctx context.Context) (remotes.Fetcher, error)
	progress   func(n int)
}

// Handle fetches one blob, if peers have it. It leaves to containerd, and so to the registry, what does
// not come from peers. A failure of peers is therefore none of the pull.
func (f peerFetch) Handle(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if desc.Size <= 0 || int64(len(desc.Data)) == desc.Size || len(desc.URLs) > 0 || desc.Digest.Validate() != nil {
		return nil, nil
	}
	err := f.fetch(ctx, desc)
	if err != nil && !errors.Is(err, errNoPeer) && ctx.Err() == nil {
		f.store.cfg.Logger.Warn("a blob that came from peers cannot be used: the registry is asked", "digest", desc.Digest, "err", err)
	}
	return nil, ctx.Err()
}

func (f peerFetch) fetch(ctx context.Context, desc ocispec.Descriptor) error {
	cs := boundedStore{f.store.client.ContentStore()}
	if _, err := cs.Info(ctx, desc.Digest); err == nil {
		return nil
	}
	if st, err := cs.Status(ctx, remotes.MakeRefKey(ctx, desc)); err == nil && st.Offset > 0 {
		return nil // the registry has sent the beginning to an earlier pull, and sends the rest
	}
	b := peer.Blob{
		Repository: f.repository,
		Digest:     desc.Digest,
		Size:       desc.Size,
		Manifest:   images.IsManifestType(desc.MediaType) || images.IsIndexType(desc.MediaType),
	}
	w := &lateWriter{ctx: ctx, store: cs, desc: desc, ref: peerRef + desc.Digest.String()}
	if st, err := cs.Status(ctx, w.ref); err == nil {
		w.offset = st.Offset
	}
	resumed := w.offset > 0
	defer w.close()
	from, err := f.copy(ctx, b, desc, w)
	if err == nil {
		err = w.commit(ctx)
	}
	switch native := connection.Native(err); {
	case err == nil, errdefs.IsAlreadyExists(native):
		return nil
	case ctx.Err() != nil, errors.Is(err, errNoPeer), errors.Is(err, errMoved):
		return err // what has come is gone on with by the next pull
	case errdefs.IsFailedPrecondition(native) && !resumed: // another digest, by none but these
		f.store.cfg.Logger.Debug("peers have sent wrong bytes", "digest", desc.Digest, "err", err)
		f.store.cfg.Peers.Lied(b, from)
	}
	w.discard()
	return err
}

// copy writes all of a blob, from peers as far as they have it. What they do not finish the registry
// does: it sends no byte again that a peer has sent.
func (f peerFetch) copy(ctx context.Context, b peer.Blob, desc ocispec.Descriptor, w *lateWriter) (from []netip.AddrPort, err error) {
	if w.offset > desc.Size {
		return nil, fmt.Errorf("%d bytes of %d are there: %w", w.offset, desc.Size, errdefs.ErrOutOfRange)
	}
	if w.offset < desc.Size {
		var done peer.Copied
		done, err = f.store.cfg.Peers.Copy(ctx, b, w.offset, w, f.progress)
		from = done.From
	}
	if !errdefs.IsNotFound(err) {
		return from, err
	}
	if w.offset == 0 {
		return from, errNoPeer
	}
	if err := f.rest(ctx, desc, w); err != nil {
		if w.failed != nil {
			return from, w.failed
		}
		var answer remoteerrors.ErrUnexpectedStatus
		if errors.As(err, &answer) { // it does not send parts, and would not do so next time
			w.discard()
		}
		return from, fmt.Errorf("%w: %w", errNoPeer, err) // containerd asks the registry, and says why it cannot
	}
	return from, nil
}

// rest fetches the end of a blob from the registry.
func (f peerFetch) rest(ctx context.Context, desc ocispec.Descriptor, w *lateWriter) error {
	fetcher, err := f.registry(ctx)
	if err != nil {
		return err
	}
	r, err := fetcher.Fetch(ctx, desc)
	if err != nil {
		return err
	}
	defer r.Close()
	seeker, ok := r.(io.Seeker)
	if !ok {
		return errNoPeer
	}
	if _, err := seeker.Seek(w.offset, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(w, r, desc.Size-w.offset)
	return err
}

// lateWriter writes a blob into the content store, which is asked for a place once there is something
// to be written: most blobs are with no peer.
type lateWriter struct {
	ctx    context.Context //nolint:containedctx // of the one call that writes
	store  content.Store
	desc   ocispec.Descriptor
	ref    string
	offset int64 // what is written, an earlier pull's part included
	w      content.Writer
	failed error // of the store
}

// open begins the blob, or goes on with it.
func (l *lateWriter) open() error {
	if l.w != nil {
		return nil
	}
	w, err := content.OpenWriter(l.ctx, l.store, content.WithRef(l.ref), content.WithDescriptor(l.desc))
	if err != nil {
		return err
	}
	l.w = w
	st, err := w.Status()
	if err == nil && st.Offset != l.offset {
		err = errMoved
	}
	return err
}

// Write writes the next bytes.
func (l *lateWriter) Write(p []byte) (int, error) {
	if l.failed == nil {
		l.failed = l.open()
	}
	if l.failed != nil {
		return 0, l.failed
	}
	n, err := l.w.Write(p)
	l.offset += int64(n)
	l.failed = err
	return n, err
}

// commit ends the blob, if it has the right digest.
func (l *lateWriter) commit(ctx context.Context) error {
	if err := l.open(); err != nil {
		return err
	}
	return l.w.Commit(ctx, l.desc.Size, l.desc.Digest)
}

// discard removes what was written.
func (l *lateWriter) discard() {
	l.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), lookTimeout)
	defer cancel()
	_ = l.store.Abort(ctx, l.ref) // else containerd does, once the lease has ended
}

// close ends the writing. What was written stays.
func (l *lateWriter) close() {
	if l.w != nil {
		_ = l.w.Close()
		l.w = nil
	}
}
