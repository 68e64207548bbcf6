// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/base/processors"
	"berth/test/testimage"
)

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blob is a content store with one layer. It calls reading during each read, if that is not nil,
// and fails behind the first 64 KiB, if fails is not nil.
type blob struct {
	b       []byte
	reading func()
	fails   error
}

func (b *blob) ReaderAt(context.Context, ocispec.Descriptor) (content.ReaderAt, error) { return b, nil }
func (b *blob) Size() int64                                                            { return int64(len(b.b)) }
func (b *blob) Close() error                                                           { return nil }

func (b *blob) ReadAt(p []byte, off int64) (int, error) {
	if b.reading != nil {
		b.reading()
	}
	if b.fails != nil && off >= 64<<10 {
		return 0, b.fails
	}
	return bytes.NewReader(b.b).ReadAt(p, off)
}

// tarOf returns the tar of a layer.
func tarOf(t *testing.T, files ...testimage.File) []byte {
	t.Helper()
	layer, err := testimage.Layer(files...)
	try(t, err)
	r, err := layer.Uncompressed()
	try(t, err)
	b, err := io.ReadAll(r)
	try(t, err)
	return b
}

func zstdOf(t *testing.T, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	try(t, err)
	return w.EncodeAll(b, nil)
}

func TestALayerIsUnpackedHoweverItIsCompressed(t *testing.T) {
	plain := tarOf(t,
		testimage.File{Name: "dir", Mode: fs.ModeDir | 0o750},
		testimage.File{Name: "dir/file", Mode: 0o640, Body: []byte("content")},
		testimage.File{Name: "link", Mode: fs.ModeSymlink | 0o777, Target: "dir/file"},
	)
	for name, l := range map[string]struct {
		mediaType string
		b         []byte
	}{
		"not at all":   {ocispec.MediaTypeImageLayer, plain},
		"zstd":         {ocispec.MediaTypeImageLayerZstd, zstdOf(t, plain)},
		"by its bytes": {ocispec.MediaTypeImageLayerGzip, zstdOf(t, plain)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			got, err := Applier{Layers: &blob{b: l.b}}.Apply(t.Context(), ocispec.Descriptor{MediaType: l.mediaType},
				[]mount.Mount{{Type: "bind", Source: dir, Options: []string{"rbind", "rw"}}})
			try(t, err)
			want := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(plain), Size: int64(len(plain))}
			if got.Digest != want.Digest || got.Size != want.Size || got.MediaType != want.MediaType {
				t.Errorf("%v, want %v", got, want)
			}
			b, err := os.ReadFile(filepath.Join(dir, "link"))
			st, serr := os.Stat(filepath.Join(dir, "dir"))
			if string(b) != "content" || err != nil || serr != nil || st.Mode().Perm() != 0o750 {
				t.Errorf("%q %v %v", b, err, serr)
			}
		})
	}
}

// PROPERTIES 12: what a layer has a decompressor remember is bounded by the window, and whatever
// else it needs by the memory of the process.
func TestALayerThatTakesTooMuchMemoryIsRefused(t *testing.T) {
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerZstd}
	for _, log := range []int{27, 28} {
		l := &blob{b: testimage.ZstdZeros(log, 1<<20)}
		_, err := Applier{Layers: l}.Into(t.Context(), desc, Target{Dir: t.TempDir()})
		if allowed := 1<<log <= maxWindow; allowed && err != nil || !allowed && !errdefs.IsResourceExhausted(err) {
			t.Errorf("a window of %d MiB: %v", 1<<log>>20, err)
		}
	}
	r := request{Descriptor: desc, Target: Target{Dir: t.TempDir()}, Memory: 16 << 20}
	if _, err := r.run(t.Context(), bytes.NewReader(testimage.ZstdZeros(27, 64<<20))); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("a process that takes more memory than it may: %v", err)
	}
}

// One image held all slots, and the layers of others waited for it for as long as it took.
// PROPERTIES 12.
func TestAnImageLeavesASlotToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("enough")
		greedy, cancel := context.WithCancelCause(ForImage(t.Context(), nil))
		got := make(chan error, most)
		for range most {
			go func() {
				release, err := slot(greedy)
				if err == nil {
					defer release()
				}
				got <- err
				<-greedy.Done()
			}()
		}
		synctest.Wait()
		if len(got) != int(most)-1 {
			t.Errorf("one image has %d of %d slots", len(got), most)
		}
		other, giveUp := context.WithTimeout(ForImage(t.Context(), nil), time.Minute)
		defer giveUp()
		if release, err := slot(other); err != nil {
			t.Errorf("another image: %v", err)
		} else {
			release()
		}
		cancel(reason)
		synctest.Wait()
		for range most - 1 {
			try(t, <-got)
		}
		if err := <-got; !errors.Is(err, reason) {
			t.Errorf("a layer whose call has ended: %v", err)
		}
	})
}

// A layer that waited for a slot counted as one that takes long to unpack.
func TestALayerSaysThatItWaitsForASlot(t *testing.T) {
	try(t, slots.Acquire(t.Context(), most))
	free := sync.OnceFunc(func() { slots.Release(most) })
	defer free()
	waits, waiting := make(chan struct{}, 1), false
	ctx, cancel := context.WithCancelCause(ForImage(t.Context(), func(is bool) {
		if waiting = is; is {
			waits <- struct{}{}
		}
	}))
	layer := &blob{b: tarOf(t, testimage.File{Name: "file"})}
	layer.reading = func() {
		if waiting {
			t.Error("it waits while it is unpacked")
		}
	}
	into := func() chan error {
		done := make(chan error)
		go func() {
			_, err := Applier{Layers: layer}.Into(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: t.TempDir()})
			done <- err
		}()
		<-waits
		return done
	}
	done := into()
	free()
	try(t, <-done)
	try(t, slots.Acquire(t.Context(), most))
	defer slots.Release(most)
	done = into()
	reason := errors.New("enough")
	cancel(reason)
	if err := <-done; !errors.Is(err, reason) || waiting {
		t.Errorf("its call has ended: %v, waiting %t", err, waiting)
	}
}

// A disk that could not read a layer made it a bad one.
func TestALayerThatCannotBeReadIsNotABadOne(t *testing.T) {
	broken := errors.New("the disk is broken")
	l := &blob{b: tarOf(t, testimage.File{Name: "file", Body: make([]byte, 1<<20)}), fails: broken}
	_, err := Applier{Layers: l}.Into(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: t.TempDir()})
	if !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
}

// The process that unpacks a layer is ended with its call, the OOM killer ends it first, and it
// lets berth have the processors.
func TestTheProcessOfALayerEndsWithItsCall(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	var pid, score string
	l := &blob{b: tarOf(t, testimage.File{Name: "file", Body: make([]byte, 1<<20)})}
	l.reading = func() {
		if ctx.Err() != nil {
			return
		}
		// The process reads the rest once this has returned.
		for end := time.Now().Add(time.Minute); score != fmt.Sprint(oomScoreAdj); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("process %q has the OOM score %q, want %d", pid, score, oomScoreAdj)
				break
			}
			if pid = child(t); pid != "" {
				b, _ := os.ReadFile("/proc/" + pid + "/oom_score_adj")
				score = strings.TrimSpace(string(b))
			}
		}
		confined(t, pid)
		yields(t, pid)
		cancel(reason)
		<-ctx.Done()
	}
	_, err := Applier{Layers: l}.Into(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: t.TempDir()})
	if !errors.Is(err, reason) {
		t.Errorf("%v, want %v", err, reason)
	}
	if left := child(t); left != "" {
		t.Errorf("process %s is left", left)
	}
}

// confined waits until a process has given up what it does not need.
func confined(t *testing.T, pid string) {
	t.Helper()
	if own, err := os.Readlink("/proc/self/ns/net"); mayMakeNetwork() && err == nil {
		if its, err := os.Readlink("/proc/" + pid + "/ns/net"); err != nil || its == own {
			t.Errorf("it has the network of its caller: %s %v", its, err)
		}
	}
	if !confines {
		return
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b, _ := os.ReadFile("/proc/" + pid + "/status")
		if !strings.Contains(string(b), "NoNewPrivs:\t1\n") {
			continue
		}
		_, caps, _ := strings.Cut(string(b), "CapPrm:\t")
		caps, _, _ = strings.Cut(caps, "\n")
		if has, err := strconv.ParseUint(caps, 16, 64); err != nil || has&^needed != 0 {
			t.Errorf("it has the capabilities %s: %v", caps, err)
		}
		return
	}
	t.Error("it can still get privileges by a program that it starts")
}

// yields waits until all threads of a process have a lower priority than berth, and let others go
// first at once where the kernel lets them ask for that.
func yields(t *testing.T, pid string) {
	t.Helper()
	own, err := unix.SchedGetAttr(0, 0)
	try(t, err)
	asks := own.Runtime != 0 // Linux 6.12 or newer
	var seen []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, err := os.ReadDir("/proc/" + pid + "/task")
		try(t, err)
		seen = nil
		ok := true
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			try(t, err)
			attr, err := unix.SchedGetAttr(tid, 0)
			if err != nil {
				continue // the thread may have ended
			}
			seen = append(seen, fmt.Sprintf("niceness %d, slice %s", attr.Nice, time.Duration(attr.Runtime)))
			ok = ok && attr.Nice >= niceLast && (!asks || attr.Runtime == uint64(processors.LongSlice))
		}
		if ok && len(seen) > 0 {
			return
		}
	}
	t.Errorf("its threads have %q, want niceness %d at least and slice %s", seen, niceLast, processors.LongSlice)
}

// child returns the number of the process that unpacks a layer for this one, or "".
func child(t *testing.T) string {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	try(t, err)
	for _, l := range lists {
		b, _ := os.ReadFile(l) // the thread may have ended
		for pid := range strings.FieldsSeq(string(b)) {
			if name, _ := os.ReadFile("/proc/" + pid + "/cmdline"); string(name) == processName+"\x00" {
				return pid
			}
		}
	}
	return ""
}

// What the process decides by is said again by its caller.
func TestErrorsOfTheProcessKeepTheirKind(t *testing.T) {
	l := &blob{b: tarOf(t, testimage.File{Name: "below/file"})}
	_, err := Applier{Layers: l}.Into(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: t.TempDir(), Alone: true})
	if !errors.Is(err, ErrNeedsParent) || strings.Count(err.Error(), ErrNeedsParent.Error()) != 1 {
		t.Errorf("a layer that lacks a directory: %v", err)
	}
	l.b = l.b[:len(l.b)/4]
	if _, err = (Applier{Layers: l}).Into(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}, Target{Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("half a layer: %v", err)
	}
}
