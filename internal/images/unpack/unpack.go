// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"berth/internal/base/errkind"
	"berth/internal/base/ops"
	"berth/internal/images/durable"
)

// Memory is how many bytes of memory it may take to unpack one layer.
const Memory = 512 << 20

// ErrNeedsParent says that a layer cannot be unpacked apart from the layers below it: it has a file
// in a directory that it does not have itself. That directory gets the owner, mode and attributes
// of the one below.
var ErrNeedsParent = errkind.Register("needs parent", errors.New("its directory is in a layer below"))

// The caller of a process decides on these as well.
var (
	_ = errkind.Register("wrong", durable.ErrWrong)
	_ = errkind.Register("no index", durable.ErrNoIndex)
)

// Target is where a layer is unpacked.
type Target struct {
	Dir     string
	Parents []string // the directories of the layers below, the topmost first, if it is one of an overlay
	Overlay bool     // files that the layer deletes are marked as overlayfs has them
	// Alone refuses a layer that has a file in a directory of a layer below, with ErrNeedsParent.
	Alone bool
	// Index is where the index of the layer is written; "" for none yet. See package durable. It
	// takes some percent of the time of a pull, so WriteIndex does it later, when no caller waits.
	Index string
}

// IndexOf returns where the index of a layer is that a snapshotter keeps in dir: beside the
// directory, so that it is removed with the layer. It returns "" for a snapshotter that has nothing
// beside it.
func IndexOf(dir string) string {
	if filepath.Base(dir) != "fs" {
		return ""
	}
	return filepath.Join(filepath.Dir(dir), "berth-index")
}

// most is how many layers that are whole are unpacked at the same time, and how many that arrive.
var most = int64(max(3, runtime.NumCPU()))

// A layer that arrives has its slot for as long as the registry takes, so it takes none of those
// that layers need which are whole.
var slots, arriving = semaphore.NewWeighted(most), semaphore.NewWeighted(most)

// imageKey is the key of a context's value: an *ofImage.
type imageKey struct{}

type ofImage struct {
	share, arriving *semaphore.Weighted
	waits           func(bool)
}

// ForImage makes the layers that are unpacked with a context those of one image. They never have
// all of the slots, however long they take, so that there is one for another image. waits is called
// with true when one of them waits for a slot, and with false once it has that or gives up. It may
// be nil. It is a value of the context because containerd's client and its differ are between the
// pull of an image and the unpacking of a layer.
func ForImage(ctx context.Context, waits func(bool)) context.Context {
	return context.WithValue(ctx, imageKey{}, &ofImage{semaphore.NewWeighted(most - 1), semaphore.NewWeighted(most - 1), waits})
}

// slot waits until a layer may be unpacked. The caller releases the slot.
func slot(ctx context.Context) (release func(), err error) {
	of, _ := ctx.Value(imageKey{}).(*ofImage)
	if of == nil {
		return acquire(ctx, slots)
	}
	if of.waits != nil {
		of.waits(true)
		defer of.waits(false)
	}
	return acquire(ctx, of.share, slots) // a layer without a share does not stand in line for a slot
}

// slotWhile waits until a layer that arrives may be unpacked. If it is whole before, it has a slot
// of those that are whole.
func slotWhile(ctx context.Context, whole <-chan struct{}) (release func(), err error) {
	turns := []*semaphore.Weighted{arriving}
	if of, _ := ctx.Value(imageKey{}).(*ofImage); of != nil {
		turns = []*semaphore.Weighted{of.arriving, arriving}
	}
	arrives, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-whole:
			cancel()
		case <-arrives.Done():
		}
	}()
	if release, err = acquire(arrives, turns...); err == nil || ctx.Err() != nil {
		return release, err
	}
	return slot(ctx)
}

// acquire waits for one turn after the other.
func acquire(ctx context.Context, turns ...*semaphore.Weighted) (release func(), err error) {
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "a slot to unpack a layer"})
	defer op.End()
	for n, s := range turns {
		if err := s.Acquire(ctx, 1); err != nil {
			for _, s := range turns[:n] {
				s.Release(1)
			}
			return nil, context.Cause(ctx)
		}
	}
	return func() {
		for _, s := range turns {
			s.Release(1)
		}
	}, nil
}

// Applier unpacks layers that a content store has. It is a [diff.Applier].
type Applier struct {
	Layers content.Provider
	// Arriving is the layer that is unpacked, if not all of it is in Layers yet. It may be nil.
	Arriving Arriving
	Late     bool // the kernel decides when it writes back files: see [durable.Early]
}

// Arriving is a layer that is being fetched.
type Arriving interface {
	// Open returns the bytes of the layer as they come. It waits for the first, and Read for the
	// next ones; the end of the layer comes once its digest is right. Close ends a Read. A nil
	// reader says that the layer is whole and can be read in another way.
	Open(ctx context.Context) (io.ReadCloser, error)
	// Whole is closed once the layer is whole, or cannot be had. Err says which.
	Whole() <-chan struct{}
	Err() error
}

// Apply unpacks a layer into a snapshot, whose mounts are given.
func (a Applier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if to, ok := target(mounts); ok {
		return a.Into(ctx, desc, to, opts...)
	}
	var applied ocispec.Descriptor
	err := mount.WithTempMount(ctx, mounts, func(root string) (err error) {
		applied, err = a.Into(ctx, desc, Target{Dir: root}, opts...)
		return err
	})
	return applied, err
}

// target returns the directories of a snapshot that need not be mounted to be written.
func target(mounts []mount.Mount) (Target, bool) {
	if len(mounts) != 1 {
		return Target{}, false
	}
	to := Target{Overlay: mounts[0].Type == "overlay"}
	for _, o := range mounts[0].Options {
		name, value, _ := strings.Cut(o, "=")
		switch {
		case name == "uidmap", name == "gidmap", name == "ro":
			return Target{}, false
		case to.Overlay && name == "upperdir":
			to.Dir = value
		case to.Overlay && name == "lowerdir":
			to.Parents = strings.Split(value, ":")
		}
	}
	if mounts[0].Type == "bind" {
		to.Dir = mounts[0].Source
	}
	return to, to.Dir != ""
}

// Into unpacks a layer into a directory, and returns the digest and the size of its tar. Errors are
// ErrResourceExhausted for a layer that takes too much memory, ErrNeedsParent, and those of
// containerd's differ.
func (a Applier) Into(ctx context.Context, desc ocispec.Descriptor, to Target, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	var config diff.ApplyConfig
	for _, o := range opts {
		if err := o(ctx, desc, &config); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	layer, release, err := a.open(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer release()
	defer layer.Close()
	ctx, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "the layer " + desc.Digest.String() + " to be unpacked"})
	defer op.End()
	r := request{
		Descriptor: desc,
		Target:     to,
		Payloads:   map[string]payload{},
		// Where there can be no index, nothing could tell after a power cut that the layer is lost.
		Sync:   config.SyncFs || to.Index == "" && IndexOf(to.Dir) == "",
		Late:   a.Late,
		Memory: Memory,
		Igzip:  findIgzip(ctx, desc),
	}
	for id, p := range config.ProcessorPayloads {
		r.Payloads[id] = payload{p.GetTypeUrl(), p.GetValue()}
	}
	if config.Progress != nil {
		layer = &progress{ReadCloser: layer, report: config.Progress}
	}
	applied, err := r.run(ctx, layer)
	if err == nil && a.Arriving != nil {
		// The process may have found the end of the archive before that of the blob.
		select {
		case <-a.Arriving.Whole():
			err = a.Arriving.Err()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("unpack layer %s: %w", desc.Digest, err)
	}
	return ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayer,
		Digest:    digest.Digest(applied.Digest),
		Size:      applied.Size,
	}, nil
}

// open returns the bytes of a layer, and takes the slot that its process needs.
func (a Applier) open(ctx context.Context, desc ocispec.Descriptor) (layer io.ReadCloser, release func(), err error) {
	if a.Arriving != nil {
		if layer, err = a.Arriving.Open(ctx); err != nil {
			return nil, nil, fmt.Errorf("read layer %s: %w", desc.Digest, err)
		}
	}
	if layer != nil {
		release, err = slotWhile(ctx, a.Arriving.Whole())
	} else {
		var blob content.ReaderAt
		if blob, err = a.Layers.ReaderAt(ctx, desc); err != nil {
			return nil, nil, err
		}
		layer = struct {
			io.Reader
			io.Closer
		}{content.NewReader(blob), blob}
		release, err = slot(ctx)
	}
	if err != nil {
		_ = layer.Close()
		return nil, nil, err
	}
	return layer, release, nil
}

// progress reports how many bytes were read.
type progress struct {
	io.ReadCloser
	n      int64
	report func(int64)
}

// Read reads the next bytes.
func (p *progress) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	p.n += int64(n)
	p.report(p.n)
	return n, err
}

// run starts the process, gives it the layer, and waits for it. It closes a layer that can be
// closed: its next byte may be long in coming, and the process has ended.
func (r request) run(ctx context.Context, layer io.Reader) (answer, error) {
	asked, err := json.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	asked = append(binary.BigEndian.AppendUint32(nil, uint32(len(asked))), asked...)
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{processName}
	cmd.Env = environment
	if mayMakeNetwork() { // as always but in a test
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	cmd.Dir = "/"
	if r.file != nil {
		cmd.ExtraFiles = []*os.File{r.file}
	}
	// The process need not read to the end, so exec is not given a reader to copy from.
	in, err := cmd.StdinPipe()
	if err != nil {
		return answer{}, err
	}
	if pipe, ok := in.(*os.File); ok { // as always
		widen(pipe)
	}
	out, said := bounded{left: maxAnswer}, bounded{left: maxSaid}
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = time.Second // a program that it has started may hold its output open
	if err := cmd.Start(); err != nil {
		return answer{}, fmt.Errorf("start %s: %w", processName, err)
	}
	fed := make(chan error, 1)
	go func() {
		_, err := in.Write(asked)
		if err == nil {
			_, err = io.CopyBuffer(feed{in}, readonly{layer}, make([]byte, feedBytes))
		}
		in.Close()
		fed <- err
	}()
	ended := cmd.Wait() // closes in, which ends the copy
	if c, ok := layer.(io.Closer); ok {
		_ = c.Close()
	}
	unread := <-fed
	if errors.Is(unread, os.ErrClosed) || errors.Is(unread, unix.EPIPE) { // the process did not need the rest
		unread = nil
	}
	var a answer
	switch {
	case ctx.Err() != nil:
		return a, context.Cause(ctx)
	case unread != nil: // to the process the layer ended too early
		return a, fmt.Errorf("read it: %w", unread)
	case ended != nil || json.Unmarshal(out.b.Bytes(), &a) != nil:
		return a, said.reason(ended)
	case a.Error != "":
		return a, a.err()
	}
	return a, nil
}

// feed and readonly hide the other methods of a pipe and of a layer from io.CopyBuffer.
type (
	feed     struct{ io.Writer }
	readonly struct{ io.Reader }
)

// feedBytes is how much of a layer is read at a time.
const feedBytes = 256 << 10

const (
	maxAnswer = 64 << 10 // bytes of the answer of a process,
	maxSaid   = 16 << 10 // and of its words when it crashes
)

// bounded keeps the beginning of an output.
type bounded struct {
	b    bytes.Buffer
	left int
}

// Write keeps as much as there is room for.
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.b.Write(p[:n])
	return len(p), nil
}

// reason returns why a process has ended without an answer, with its last words.
func (b *bounded) reason(ended error) error {
	line, _, _ := strings.Cut(b.b.String(), "\n")
	return fmt.Errorf("the process %s ended without an answer: %w: %.200q", processName, errors.Join(ended, errdefs.ErrInternal), line)
}

// mayMakeNetwork reports whether this process has CAP_SYS_ADMIN, which a network namespace of its
// own takes.
func mayMakeNetwork() bool { return capabilities()&(1<<unix.CAP_SYS_ADMIN) != 0 }

// capabilities returns those that this process can use.
func capabilities() uint64 {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if unix.Capget(&header, &has[0]) != nil {
		return 0
	}
	return uint64(has[1].Effective)<<32 | uint64(has[0].Effective)
}
