// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"runtime"
	"testing"
)

func TestPullsLeaveProcessorsToOthers(t *testing.T) {
	base := runtime.GOMAXPROCS(0)
	var p processors
	want := func(when string, n int) {
		t.Helper()
		if got := runtime.GOMAXPROCS(0); got != n {
			t.Errorf("%s: %d, want %d", when, got, n)
		}
	}
	first := p.more(6)
	want("one pull", base+6)
	second := p.more(2)
	want("two pulls", base+8)
	first()
	want("one of two has ended", base+2)
	second()
	want("both have ended", base)
	off := processors{off: true}
	defer off.more(4)()
	want("turned off", base)
}
