// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"os"
	"runtime"
	"testing"

	"berth/internal/engine/embed"
	"berth/test/embedtest"

	"go.uber.org/goleak"
)

func TestStopGivesBackGoroutinesAndDescriptors(t *testing.T) {
	cfg := embedtest.Config(t)
	cycle := func() {
		s, err := embed.Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Client().Version(k8s(t)); err != nil {
			t.Error(err)
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	// The event exchange has no Close; see the package comment.
	exchange := goleak.IgnoreTopFunction("github.com/docker/go-events.(*Broadcaster).run")
	before := goleak.IgnoreCurrent()

	cycle() // whatever a process opens once and keeps
	goleak.VerifyNone(t, before, exchange)
	runtime.GC()
	fds := descriptors(t)
	for range 10 {
		cycle()
	}
	goleak.VerifyNone(t, before, exchange)
	// Some directories that containerd holds open as an os.Root are closed by
	// the garbage collector, which finishes that in its own time.
	for range 1000 {
		if runtime.GC(); descriptors(t) <= fds {
			return
		}
	}
	t.Errorf("%d descriptors after ten starts and stops, %d before", descriptors(t), fds)
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// BenchmarkStart measures a start on directories that exist, and the stop.
func BenchmarkStart(b *testing.B) {
	cfg := embedtest.Config(b)
	for b.Loop() {
		s, err := embed.Start(b.Context(), cfg)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Stop(); err != nil {
			b.Fatal(err)
		}
	}
}
