// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// PROPERTIES 55: OOM kills in a group below are counted, and the limit that was reached counts for the
// group, not for those above. So are those of a group far below. Of very many groups only some are
// looked at, so that an exit does not wait for them.
func TestOOMKillsBelowAGroupAreCounted(t *testing.T) {
	const limit = 8 << 20
	outer := limited(t, "", 0)
	delegate := func(dir string) {
		if V2() {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	delegate(outer)
	own := limited(t, outer, 0)
	delegate(own)
	between := limited(t, own, 0)
	delegate(between)
	child := limited(t, between, limit)
	if Unnoticed(own) == V2() || Unnoticed(child) {
		t.Error("whether kills are noticed below")
	}
	for kills := uint64(1); kills <= 2; kills++ {
		before, err := LimitHits(own)
		if err != nil {
			t.Fatal(err)
		}
		_ = join(t, child, "/bin/sh", "-c", "x=$(tail /dev/zero)").Wait()
		until(t, "the kill is counted", func() bool {
			n, err := OOMKills(own)
			return err == nil && n >= kills
		})
		after, err := LimitHits(own)
		if err != nil || after[0] <= before[0] || after[1] != before[1] {
			t.Errorf("the limits were reached %v times, and then %v: %v", before, after, err)
		}
	}
	for i := range mostBelow + 20 {
		d := filepath.Join(own, fmt.Sprint("many", i))
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(d) })
	}
	if n := len(below(own)); n != mostBelow {
		t.Errorf("looks at %d groups below", n)
	}
}
