// SPDX-License-Identifier: Apache-2.0

package processors

import (
	"runtime"
	"testing"
)

// back undoes what a test does to the runtime.
func back(t *testing.T) {
	t.Helper()
	was := runtime.GOMAXPROCS(0)
	t.Cleanup(func() {
		spare.Store(0)
		runtime.GOMAXPROCS(was)
	})
}

func TestSpareThreadsAreNoProcessors(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	back(t)
	n := Count()
	if !Spare(4) {
		t.Fatal("there are no spare threads")
	}
	if got := runtime.GOMAXPROCS(0); got != n+4 {
		t.Errorf("Go runs on %d threads, want %d", got, n+4)
	}
	if got := Count(); got != n {
		t.Errorf("there are %d processors, want %d as before", got, n)
	}
}

func TestGOMAXPROCSOfTheEnvironmentHasTheLastWord(t *testing.T) {
	t.Setenv("GOMAXPROCS", "1")
	back(t)
	was := runtime.GOMAXPROCS(0)
	if Spare(4) {
		t.Error("there are spare threads")
	}
	if got := runtime.GOMAXPROCS(0); got != was {
		t.Errorf("Go runs on %d threads, want %d as before", got, was)
	}
}

func TestNoSpareThreads(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	back(t)
	was := runtime.GOMAXPROCS(0)
	if Spare(0) || runtime.GOMAXPROCS(0) != was {
		t.Errorf("Go runs on %d threads, want %d as before", runtime.GOMAXPROCS(0), was)
	}
}
