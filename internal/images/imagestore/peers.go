// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/peer"
)

// peerRef begins the reference under which a blob is written that comes from peers. A blob below it
// may hold bytes of a peer that lies, so containerd never goes on with it when it fetches the blob
// from the registry.
const peerRef = "peer-"

const (
	// askAgain is after how long peers are asked once more for a blob that the registry sends: by
	// then some may have it that had not, as when many nodes pull the same image at the same time.
	askAgain = 5 * time.Second
	// worthAsking is from which size on that is worth it, in bytes. A smaller blob is left to
	// containerd.
	worthAsking = 1 << 20
)

var (
	// errMoved means that another writer has written the same blob meanwhile.
	errMoved = errors.New("another pull has written the same blob")
	// errNoPeer means that a blob is left to the registry.
	errNoPeer = errors.New("no peer has sent all of it")
)

// peerFetch fetches blobs from peers before containerd fetches them from the registry.
type peerFetch struct {
	*core
	store      content.Store
	askAgain   time.Duration // after which they are asked again for a blob that the registry sends
	repository string        // with the host of its registry
	registry   func(ctx context.Context) (remotes.Fetcher, error)
	progress   func(n int)
}

// Handle fetches one blob, if peers have it or it is worth asking them again. It leaves everything
// else to containerd, and so to the registry. A failure of peers is therefore none of the pull.
func (f peerFetch) Handle(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if desc.Size <= 0 || int64(len(desc.Data)) == desc.Size || len(desc.URLs) > 0 || desc.Digest.Validate() != nil {
		return nil, nil
	}
	err := f.fetch(ctx, desc)
	var registry registryError
	if errors.As(err, &registry) {
		return nil, registry.error
	}
	if err != nil && !errors.Is(err, errNoPeer) && ctx.Err() == nil {
		f.cfg.Logger.Warn("a blob that came from peers cannot be used: the registry is asked", "digest", desc.Digest, "err", err)
	}
	return nil, ctx.Err()
}

func (f peerFetch) fetch(ctx context.Context, desc ocispec.Descriptor) error {
	cs := f.store
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
	case ctx.Err() != nil, errors.Is(err, errNoPeer), errors.Is(err, errMoved), errors.As(err, new(registryError)):
		return err // the next pull goes on with the bytes that have come
	case errdefs.IsFailedPrecondition(native) && !resumed: // another digest, by none but these
		f.cfg.Logger.Debug("peers have sent wrong bytes", "digest", desc.Digest, "err", err)
		f.cfg.Peers.Lied(b, from)
	}
	w.discard()
	return err
}

// copy writes all of a blob, from peers as far as they have it. The registry sends the rest, and no
// byte again that a peer has sent.
func (f peerFetch) copy(ctx context.Context, b peer.Blob, desc ocispec.Descriptor, w *lateWriter) (from []netip.AddrPort, err error) {
	if w.offset > desc.Size {
		return nil, fmt.Errorf("%d bytes of %d are there: %w", w.offset, desc.Size, errdefs.ErrOutOfRange)
	}
	if w.offset < desc.Size {
		var done peer.Copied
		done, err = f.cfg.Peers.Copy(ctx, b, w.offset, w, f.progress)
		from = done.From
	}
	if !errdefs.IsNotFound(err) {
		return from, err
	}
	if w.offset == 0 && desc.Size < worthAsking {
		return from, errNoPeer
	}
	later, err := f.rest(ctx, b, desc, w)
	return append(from, later...), err
}

// rest fetches the end of a blob from the registry, or from a peer that has it meanwhile. An error
// of the registry ends the pull, as it does without peers, and the next pull goes on from there.
func (f peerFetch) rest(ctx context.Context, b peer.Blob, desc ocispec.Descriptor, w *lateWriter) (from []netip.AddrPort, err error) {
	defer func() {
		var answer remoteerrors.ErrUnexpectedStatus
		if w.failed != nil {
			err = w.failed
		} else if errors.As(err, &answer) { // such as that it sends no parts, and would not next time
			w.discard()
			err = errNoPeer
		}
	}()
	fetcher, err := f.registry(ctx)
	if err != nil {
		return nil, registryError{err}
	}
	r, err := fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, registryError{err}
	}
	defer r.Close()
	seeker, ok := r.(io.Seeker)
	if !ok {
		return nil, errNoPeer
	}
	for {
		if _, err := seeker.Seek(w.offset, io.SeekStart); err != nil {
			return from, registryError{err}
		}
		if err := f.some(r, desc.Size, w); err != nil || w.offset == desc.Size {
			return from, err
		}
		done, err := f.cfg.Peers.Copy(ctx, b, w.offset, w, f.progress)
		from = append(from, done.From...)
		if !errdefs.IsNotFound(err) {
			return from, err
		}
	}
}

// some writes bytes of the registry until peers are to be asked again.
func (f peerFetch) some(r io.Reader, size int64, w *lateWriter) error {
	buf := make([]byte, 256<<10)
	for begun := time.Now(); w.offset < size; {
		n, err := r.Read(buf[:min(int64(len(buf)), size-w.offset)])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil && w.offset < size {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return registryError{err}
		}
		if time.Since(begun) >= f.askAgain {
			break
		}
	}
	return nil
}

// registryError is an error of the registry, which ends the pull.
type registryError struct{ error }

// Unwrap returns the cause.
func (e registryError) Unwrap() error { return e.error }

// lateWriter writes a blob into the content store, which is asked for a place once there is
// something to be written: most blobs are with no peer.
type lateWriter struct {
	ctx    context.Context // of the one call that writes
	store  content.Store
	desc   ocispec.Descriptor
	ref    string
	offset int64 // bytes that are written, with those of an earlier pull
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

// discard removes the bytes that were written.
func (l *lateWriter) discard() {
	l.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), lookTimeout)
	defer cancel()
	_ = l.store.Abort(ctx, l.ref) // else containerd does, once the lease has ended
}

// close ends the writing. The written bytes stay.
func (l *lateWriter) close() {
	if l.w != nil {
		_ = l.w.Close()
		l.w = nil
	}
}
