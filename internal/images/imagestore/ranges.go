// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
)

// Registries bound the bytes per second of a connection, so pieces of a large layer are fetched on
// several. One piece a layer is always allowed; the others are what all layers from one registry
// share. A piece is in memory until it is read: at most perRegistry pieces for each registry, and
// one for each layer that is fetched.
const (
	pieceBytes  = 8 << 20
	perLayer    = 6
	perRegistry = 12
)

var pieceBuffers = sync.Pool{New: func() any { b := make([]byte, pieceBytes); return &b }}

// shares are the pieces that each registry may still send, by its host.
type shares struct{ byHost sync.Map }

func (s *shares) of(host string) *semaphore.Weighted {
	v, _ := s.byHost.LoadOrStore(host, semaphore.NewWeighted(perRegistry))
	return v.(*semaphore.Weighted)
}

// ranges fetches the large layers of a pull in pieces. nil fetches everything whole.
type ranges struct {
	share   *semaphore.Weighted // of the registry
	senders *senders
}

// fetch returns a reader of a blob. begin begins to fetch it, and returns a reader that can be
// sought in.
func (rs *ranges) fetch(ctx context.Context, desc ocispec.Descriptor, begin func(context.Context) (io.ReadCloser, error)) (io.ReadCloser, error) {
	if rs == nil || !images.IsLayerType(desc.MediaType) || desc.Size < 2*pieceBytes || !rs.senders.inPieces(desc.Digest) {
		return begin(ctx)
	}
	return &pieces{
		in:    rs,
		ctx:   ctx,
		begin: begin,
		of:    desc.Digest,
		size:  desc.Size,
	}, nil
}

// pieces reads a blob in order, of which pieces are fetched beside each other. If a piece cannot be
// fetched, such as from a registry that sends no parts or allows few connections, the rest comes by
// one connection.
type pieces struct {
	in    *ranges
	ctx   context.Context // of the fetch
	begin func(context.Context) (io.ReadCloser, error)
	of    digest.Digest
	size  int64

	off   int64    // of the next byte that is read
	ahead []*piece // that are being fetched, in order
	begun int64    // where the next piece begins
	whole io.ReadCloser
}

// piece is a part of a blob.
type piece struct {
	buf    *[]byte
	b      []byte // its unread bytes
	err    error
	done   chan struct{}
	cancel context.CancelFunc
	shared bool // it is one of the registry's share
}

// Read reads the next bytes.
func (ps *pieces) Read(p []byte) (int, error) {
	if ps.whole != nil {
		n, err := ps.whole.Read(p)
		ps.off += int64(n)
		return n, err
	}
	if ps.off >= ps.size {
		return 0, io.EOF
	}
	ps.fill()
	next := ps.ahead[0]
	<-next.done
	if next.err != nil {
		if ps.ctx.Err() != nil {
			return 0, next.err
		}
		if err := ps.oneConnection(); err != nil {
			return 0, err
		}
		return ps.Read(p)
	}
	n := copy(p, next.b)
	next.b = next.b[n:]
	ps.off += int64(n)
	if len(next.b) == 0 {
		ps.ahead = ps.ahead[1:]
		ps.release(next)
	}
	return n, nil
}

// fill begins as many pieces as may be fetched. The first of a blob shows whether the registry
// sends parts at all, so that the others wait for its answer.
func (ps *pieces) fill() {
	if len(ps.ahead) == 0 {
		ps.begun = ps.off
	}
	for len(ps.ahead) < perLayer && ps.begun < ps.size {
		shared := len(ps.ahead) > 0
		if shared && (!ps.in.senders.sendsParts() || !ps.in.share.TryAcquire(1)) {
			return
		}
		from, to := ps.begun, min(ps.begun+pieceBytes, ps.size)
		ctx, cancel := context.WithCancel(context.WithValue(ps.ctx, partKey{}, part{ps.of, from, to, ps.size}))
		one := &piece{
			buf:    pieceBuffers.Get().(*[]byte),
			done:   make(chan struct{}),
			cancel: cancel,
			shared: shared,
		}
		ps.ahead, ps.begun = append(ps.ahead, one), to
		go func() {
			defer close(one.done)
			one.b = (*one.buf)[:to-from]
			one.err = readPiece(ctx, ps.begin, from, one.b)
		}()
	}
}

func readPiece(ctx context.Context, begin func(context.Context) (io.ReadCloser, error), from int64, b []byte) error {
	r, err := begin(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	s, ok := r.(io.Seeker)
	if !ok {
		return errNoParts
	}
	if _, err := s.Seek(from, io.SeekStart); err != nil {
		return err
	}
	_, err = io.ReadFull(r, b)
	return err
}

// release gives back the room of a piece.
func (ps *pieces) release(one *piece) {
	one.cancel()
	<-one.done
	pieceBuffers.Put(one.buf)
	if one.shared {
		ps.in.share.Release(1)
	}
}

// oneConnection has the rest come by one connection.
func (ps *pieces) oneConnection() error {
	ps.drop()
	r, err := ps.begin(ps.ctx)
	if err != nil {
		return err
	}
	s, ok := r.(io.Seeker)
	if !ok {
		r.Close()
		return errNoParts
	}
	ps.whole = r
	_, err = s.Seek(ps.off, io.SeekStart)
	return err
}

// drop ends the fetches of pieces.
func (ps *pieces) drop() {
	for _, one := range ps.ahead {
		one.cancel()
	}
	for _, one := range ps.ahead {
		ps.release(one)
	}
	ps.ahead = nil
}

// Seek goes on elsewhere.
func (ps *pieces) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart || offset < 0 {
		return 0, fmt.Errorf("seek in a layer that comes in pieces: %w", errors.ErrUnsupported)
	}
	if offset != ps.off {
		if err := ps.Close(); err != nil {
			return 0, err
		}
		ps.off, ps.whole = offset, nil
	}
	return offset, nil
}

// Close ends the fetches.
func (ps *pieces) Close() error {
	ps.drop()
	if ps.whole != nil {
		return ps.whole.Close()
	}
	return nil
}

// partKey is the key of a context's value: the part of a blob that a request is to ask for.
// containerd's fetcher can ask for everything behind an offset alone.
type partKey struct{}

type part struct {
	of             digest.Digest
	from, to, size int64
}

// errNoParts: a registry has sent something else than the part that it was asked for.
var errNoParts = errors.New("the registry does not send parts of a blob")

// ask adds the part of a context to a request for a blob, or for the place that the registry has
// sent it to.
func ask(r *http.Request) (*http.Request, *part) {
	p, ok := r.Context().Value(partKey{}).(part)
	if !ok || r.Method != http.MethodGet {
		return r, nil
	}
	first := r
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	if blobIn(first.URL) == "" { // it goes to a token server
		return r, nil
	}
	// A connection that was cut goes on where it was.
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &p.from); err != nil && r.Header.Get("Range") != "" {
		return r, nil
	}
	r = r.Clone(r.Context())
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.from, p.to-1))
	r.Header.Set("Accept-Encoding", "identity")
	return r, &p
}

// answered compares an answer with the part that was asked for.
func (p *part) answered(resp *http.Response) error {
	var from, to, size int64
	_, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &from, &to, &size)
	if resp.StatusCode != http.StatusPartialContent || err != nil || from != p.from || to != p.to-1 || size != p.size {
		return fmt.Errorf("%w: it was asked for the bytes %d-%d of %d and answered %s, %q",
			errNoParts, p.from, p.to-1, p.size, resp.Status, resp.Header.Get("Content-Range"))
	}
	return nil
}
