// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Without that nothing would tell giveBack that there was a burst of work. PROPERTIES 80.
func TestEachCollectionOfGarbageTells(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan struct{}, 1)
	afterCollections(ctx, func() {
		select {
		case told <- struct{}{}:
		default:
		}
	})
	for times := 0; times < 4; { // the first is no collection's
		select {
		case <-told:
			times++
		default:
			runtime.GC()
		}
	}
}

// Most of what was mapped of the program when berth was ready had been used for its start alone,
// and was counted as used for good. PROPERTIES 80.
func TestPagesThatTheStartUsedAreUnmapped(t *testing.T) {
	if err := adviseProgram(unix.MADV_POPULATE_READ); err != nil {
		t.Fatal(err)
	}
	before := mapped(t)
	if err := adviseProgram(unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after >= before {
		t.Errorf("%d KiB of the program are mapped, %d before", after, before)
	}
}

// mapped is how much of the program of this process is resident, in KiB, without
// what it can change.
func mapped(t *testing.T) (sum int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	ours := false
	for line := range strings.Lines(string(smaps)) {
		var kib int
		if f := strings.Fields(line); len(f) > 1 && strings.Contains(f[0], "-") {
			ours = strings.HasSuffix(line, ".test\n") && !strings.Contains(f[1], "w")
		} else if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); n == 1 && ours {
			sum += kib
		}
	}
	return sum
}
