// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// withHole is a node whose container has a file with a hole.
type withHole struct {
	*node
	size int64
}

func (w withHole) WriteChanges(_ context.Context, _, _ string, out io.Writer) error {
	t := tar.NewWriter(out)
	if err := t.WriteHeader(&tar.Header{Name: "hole", Typeflag: tar.TypeReg, Size: w.size}); err != nil {
		return err
	}
	if _, err := io.CopyN(t, zeroReader{}, w.size); err != nil {
		return err
	}
	return t.Close()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A container with a file of 3 GiB that is one hole made berth write 6 GiB to its disk, until the
// checkpoint ran into its timeout. PROPERTIES 38.
func TestAHoleInAFileTakesNoRoomInACheckpoint(t *testing.T) {
	n := newNode(t)
	s := n.service
	s.cfg.Runtime = withHole{n, 256 << 20}
	location := filepath.Join(n.dir, "archive.tar")
	if err := s.Checkpoint(t.Context(), "c1", location, time.Minute); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(location, &st); err != nil || st.Size < 256<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes take %d on the disk: %v", st.Size, st.Blocks*512, err)
	}
	if _, err := inspect(t.Context(), location); err != nil {
		t.Errorf("the archive cannot be read: %v", err)
	}
}

// PROPERTIES 12: how long the files of a container are is bounded, and so is how full a disk
// becomes.
func TestACheckpointIsRefusedThatIsTooLarge(t *testing.T) {
	n := newNode(t)
	s := n.service
	s.cfg.Runtime, s.cfg.MaxBytes = withHole{n, 2 << 20}, 1<<20
	location := filepath.Join(n.dir, "archive.tar")
	err := s.Checkpoint(t.Context(), "c1", location, time.Minute)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "delete some") {
		t.Errorf("too long: %v", err)
	}
	n.expectNothingLeft(t)

	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := newSparse(f, 0)
	left := uint64(spareBytes + spareEvery)
	w.free = func(*os.File) (uint64, error) { return left, nil }
	block := bytes.Repeat([]byte{1}, 1<<20)
	if _, err := w.Write(block); err != nil {
		t.Error(err)
	}
	left--
	written := int64(1 << 20)
	for ; err == nil; written += int64(len(block)) {
		_, err = w.Write(block)
	}
	if !errdefs.IsResourceExhausted(err) || written > spareEvery+2<<20 {
		t.Errorf("written %d bytes to a disk that is too full: %v", written, err)
	}
}

// What is written is read again, wherever its zeros are.
func TestASparseFileHasWhatWasWritten(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var want []byte
	w := newSparse(f, 0)
	for i, n := range []int{1, 4095, 4096, 4097, 10000, 3, 8192, 5000} {
		b := make([]byte, n)
		if i%2 == 1 {
			b[n/2], b[n-1] = 7, 8
		}
		want = append(want, b...)
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	want = append(want, make([]byte, 9000)...)
	if _, err := w.Write(make([]byte, 9000)); err != nil {
		t.Fatal(err)
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
	}
}
