// SPDX-License-Identifier: Apache-2.0

package processors

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// PROPERTIES 48: the thread is as before afterwards, since any goroutine may get it next.
func TestWhatIsDoneBehindLetsOthersGoFirst(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slice := func() time.Duration {
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(attr.Runtime)
	}
	before, want := slice(), LongSlice
	if before == 0 { // Linux before 6.12 does not let a thread ask
		want = 0
	}
	var within time.Duration
	Behind(func() { within = slice() })
	if after := slice(); within != want || after != before {
		t.Errorf("the thread asks for %s at a time, then for %s, then for %s, want %s meanwhile", before, within, after, want)
	}
}
