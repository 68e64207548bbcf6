// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"berth/internal/base/connection"
	"berth/internal/base/errkind"
	"berth/internal/images/unpack"
)

// arriving are the layers of a pull that are being fetched. Each is unpacked while it arrives:
//
//	registry or peers ──▶ digest, file of the blob ──▶ pipe ──▶ process: decompress ──▶ digest, files
//
// The fetch of a layer goes on by itself once it has begun, and containerd's unpacker is told at
// once that the layer is there. It asks for the layer to be unpacked then, which reads the file of
// the blob as far as it is written. A slow disk therefore does not hold up the registry, and the
// bytes are still in the kernel's memory. The reader has the end of the layer only once the whole
// blob has the right digest, and containerd compares the digest of the files: a layer counts after
// both. If the file cannot be found, the layer is unpacked once it is whole.
//
// nil fetches each layer and then has it unpacked: containerd runs in another process, or one layer
// is to be unpacked at a time.
type arriving struct {
	ingests string              // the directory of blobs that are being written
	slots   *semaphore.Weighted // for layers that are fetched at the same time
	pull    context.Context     // within which they are

	mu     sync.Mutex
	life   context.Context // of the fetches
	end    context.CancelCauseFunc
	layers map[digest.Digest]*arrival
	all    sync.WaitGroup
	failed error // the first
}

func (c *core) newArriving(ctx context.Context) *arriving {
	if c.cfg.Root == "" || c.cfg.MaxConcurrentUnpacks < 2 {
		return nil
	}
	as := &arriving{
		ingests: ingestsIn(c.cfg.Root),
		slots:   semaphore.NewWeighted(int64(max(1, c.cfg.MaxConcurrentDownloads))),
		pull:    ctx,
	}
	as.begin()
	return as
}

func (as *arriving) begin() {
	as.life, as.end = context.WithCancelCause(as.pull)
	as.layers, as.failed = map[digest.Digest]*arrival{}, nil
}

// fetch fetches a layer: it returns at once, unless as is nil. A layer that is being fetched is not
// fetched twice.
func (as *arriving) fetch(ctx context.Context, dgst digest.Digest, fetch func(context.Context) error) error {
	if as == nil {
		return fetch(ctx)
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.layers[dgst] != nil || as.life.Err() != nil {
		return context.Cause(as.life)
	}
	a := &arrival{whole: make(chan struct{})}
	a.changed.L = &a.mu
	as.layers[dgst] = a
	life := as.life
	// containerd's unpacker ends its context when it has unpacked all layers that it lacks.
	ctx = fetching{life, ctx}
	as.all.Go(func() {
		err := as.slots.Acquire(ctx, 1)
		if err == nil {
			err = fetch(ctx)
			as.slots.Release(1)
		}
		if err != nil && life.Err() != nil {
			err = context.Cause(life)
		} else if err != nil {
			as.fail(err)
		}
		a.ended(err)
	})
	return nil
}

// fetching is the context of a fetch, with the values of another one.
type fetching struct {
	context.Context
	values context.Context
}

// Value returns a value.
func (f fetching) Value(key any) any {
	if v := f.Context.Value(key); v != nil {
		return v
	}
	return f.values.Value(key)
}

// fail ends all fetches, since one has failed.
func (as *arriving) fail(err error) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.failed == nil {
		as.failed = err
		as.end(err)
	}
}

// of returns a layer that has begun to arrive, or nil.
func (as *arriving) of(dgst digest.Digest) *arrival {
	if as == nil {
		return nil
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.layers[dgst]
}

// wait waits until all of the layers are here. The error is that of the one that failed first, or
// that of the attempt: it ended the fetches.
func (as *arriving) wait(attempt error) error {
	if as == nil {
		return attempt
	}
	if attempt == nil {
		as.all.Wait()
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.failed != nil {
		return as.failed
	}
	return attempt
}

// stop ends the fetches. The bytes that have come stay, and the next attempt may begin.
func (as *arriving) stop() {
	if as == nil {
		return
	}
	as.end(errOver)
	as.all.Wait()
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, a := range as.layers {
		a.forget()
	}
	as.begin()
}

// errOver says that a layer is not fetched any more, because its attempt has ended.
var errOver = fmt.Errorf("the attempt to pull the image has ended: %w", context.Canceled)

// errAnew says that the beginning of a layer was wrong and is fetched again, by which time it was
// being unpacked.
var errAnew = errors.New("the beginning of the layer was wrong")

// arrival is a layer that arrives.
type arrival struct {
	mu      sync.Mutex
	changed sync.Cond
	files   []*os.File // of the blob, each time that it was begun; nil if it cannot be found
	size    int64      // bytes of the last file that are written
	done    bool       // it is whole, or err says why not
	err     error
	whole   chan struct{} // closed with done
	begins  map[*func()]bool
}

// begun notes that the blob is written under a reference of containerd's content store from now on,
// after so many bytes of an earlier pull.
func (a *arrival) begun(ingests, ref string, w content.Writer) {
	if a == nil {
		return
	}
	st, err := w.Status()
	if err != nil {
		return
	}
	file := ingest(ingests, ref, st.Offset)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.files, a.size = append(a.files, file), st.Offset
	a.changed.Broadcast()
}

// file returns the file that is written now, or nil. Called with mu.
func (a *arrival) file() *os.File {
	if len(a.files) == 0 {
		return nil
	}
	return a.files[len(a.files)-1]
}

// wrote notes that n more bytes are in the file.
func (a *arrival) wrote(n int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.size += int64(n)
	a.changed.Broadcast()
}

// ended notes that the fetch has ended.
func (a *arrival) ended(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done, a.err = true, err
	for f := range a.begins {
		(*f)()
	}
	close(a.whole)
	a.changed.Broadcast()
}

// during calls begins once the layer is whole, and ends when the caller is over with the layer,
// unless that is before. Neither may block.
func (a *arrival) during(begins, ends func()) (over func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		begins()
		return ends
	}
	if a.begins == nil {
		a.begins = map[*func()]bool{}
	}
	a.begins[&begins] = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.begins, &begins)
		if a.done {
			ends()
		}
	}
}

// blames returns the reason why the layer could not be unpacked. Bytes that are not those of the
// layer may have done it, which is known once all of them are here. That is not waited for if other
// bytes would not help.
func (a *arrival) blames(ctx context.Context, err error) error {
	if a == nil || err == nil || errors.Is(err, unpack.ErrNeedsParent) || errkind.Full(err) || errdefs.IsResourceExhausted(err) {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-a.whole:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return a.err
	case len(a.files) > 1:
		return fmt.Errorf("%w: %w", errAnew, err)
	}
	return err
}

// forget closes the files.
func (a *arrival) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.files {
		_ = f.Close() // nil is an error
	}
	a.files = nil
}

// Whole is closed once the layer is here, or cannot be had.
func (a *arrival) Whole() <-chan struct{} { return a.whole }

// Err says whether the layer that is whole can be used.
func (a *arrival) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Open waits for the first bytes, and returns a reader of all of them; nil if there is no file to
// read from.
func (a *arrival) Open(ctx context.Context) (io.ReadCloser, error) {
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.changed.Broadcast()
	})
	defer stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	for (a.file() == nil || a.size == 0) && !a.done && ctx.Err() == nil {
		a.changed.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case a.err != nil:
		return nil, a.err
	case a.file() == nil:
		return nil, nil
	}
	return &arrivalReader{a: a, file: a.file()}, nil
}

// arrivalReader reads a layer from its first byte on.
type arrivalReader struct {
	a      *arrival
	file   *os.File
	off    int64 // of the next byte
	closed bool  // guarded by a.mu
}

// Read waits for the next bytes.
func (r *arrivalReader) Read(p []byte) (int, error) {
	a := r.a
	a.mu.Lock()
	for r.off >= a.size && a.file() == r.file && !a.done && !r.closed {
		a.changed.Wait()
	}
	var err error
	switch {
	case r.closed:
		err = os.ErrClosed
	case a.err != nil:
		err = a.err
	case a.file() != r.file:
		err = errAnew
	case r.off >= a.size:
		err = io.EOF
	}
	there := a.size - r.off
	a.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := r.file.ReadAt(p[:min(int64(len(p)), there)], r.off)
	r.off += int64(n)
	return n, err
}

// Close ends a Read.
func (r *arrivalReader) Close() error {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	r.closed = true
	r.a.changed.Broadcast()
	return nil
}

// ingestsIn returns the directory of the blobs that containerd does not have all of. Everything
// that reads there works in another way if containerd writes them elsewhere.
func ingestsIn(root string) string {
	return filepath.Join(root, "io.containerd.content.v1.content", "ingest")
}

// ingest opens the file of a blob that containerd is writing; nil if it cannot be told which it is.
// containerd puts its namespace and a number in front of the reference.
func ingest(dir, ref string, size int64) *os.File {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var file *os.File
	for _, e := range all {
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "ref"))
		in, rest, _ := strings.Cut(string(b), "/")
		_, name, _ := strings.Cut(rest, "/")
		if err != nil || in != connection.Namespace || name != ref {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name(), "data"))
		if file != nil || err != nil { // one of them is of a writer before, and may be wrong
			return nil
		}
		if st, err := f.Stat(); err != nil || st.Size() != size {
			f.Close()
			continue
		}
		file = f
	}
	return file
}

// writes returns the layer that a descriptor names, whose blob is about to be written.
func (as *arriving) writes(desc ocispec.Descriptor, ref string, w content.Writer) *arrival {
	a := as.of(desc.Digest)
	if a != nil {
		a.begun(as.ingests, ref, w)
	}
	return a
}
