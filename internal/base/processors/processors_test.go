// SPDX-License-Identifier: Apache-2.0

package processors

import (
	"runtime"
	"testing"
)

// with has Go run on n threads during a test, and undoes what the test does to the runtime.
func with(t *testing.T, n int) {
	t.Helper()
	was := runtime.GOMAXPROCS(n)
	t.Cleanup(func() {
		before.Store(0)
		runtime.GOMAXPROCS(was)
	})
}

func TestSpareThreadsAreNoProcessors(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	n := runtime.NumCPU()
	with(t, n)
	if !Spare() {
		t.Fatal("there are no spare threads")
	}
	if got := runtime.GOMAXPROCS(0); got != n+spareThreads {
		t.Errorf("Go runs on %d threads, want %d", got, n+spareThreads)
	}
	if got := Count(); got != n {
		t.Errorf("there are %d processors, want %d as before", got, n)
	}
}

func TestGOMAXPROCSOfTheEnvironmentHasTheLastWord(t *testing.T) {
	n := runtime.NumCPU()
	with(t, n)
	t.Setenv("GOMAXPROCS", "1")
	if Spare() || runtime.GOMAXPROCS(0) != n || Count() != n {
		t.Errorf("Go runs on %d threads, want %d as before", runtime.GOMAXPROCS(0), n)
	}
}

func TestAQuotaHasTheLastWord(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	n := runtime.NumCPU() - 1 // as Go does for a quota
	if n == 0 {
		return // of one processor there is no smaller quota that Go sees
	}
	with(t, n)
	if Spare() || runtime.GOMAXPROCS(0) != n || Count() != n {
		t.Errorf("Go runs on %d threads, want %d as before", runtime.GOMAXPROCS(0), n)
	}
}
