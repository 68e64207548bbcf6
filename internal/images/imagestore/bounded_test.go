// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"golang.org/x/sys/unix"

	"berth/internal/base/processors"
)

// asking is a writer that notes for how long its caller's thread asks to run at a time.
type asking struct {
	content.Writer
	slice time.Duration
}

func (w *asking) Write(p []byte) (int, error) {
	attr, err := unix.SchedGetAttr(0, 0)
	w.slice = time.Duration(attr.Runtime)
	return len(p), err
}

// PROPERTIES 48: whoever waited for an end waited until a part of a blob was hashed and written.
func TestABlobIsWrittenBehindWhatSomebodyWaitsFor(t *testing.T) {
	own, err := unix.SchedGetAttr(0, 0)
	try(t, err)
	want := processors.LongSlice
	if own.Runtime == 0 { // Linux before 6.12 does not let a thread ask
		want = 0
	}
	to := &asking{}
	if n, err := (blobWriter{Writer: to}).Write([]byte("part")); n != 4 || err != nil {
		t.Errorf("%d bytes were written: %v", n, err)
	}
	if to.slice != want {
		t.Errorf("the thread asks for %s at a time, want %s", to.slice, want)
	}
}
