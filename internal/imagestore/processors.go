// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: more threads for Go while images are pulled. It relies on what Go and
// the kernel do not promise: that a goroutine which computes keeps its slot for ten milliseconds, and
// that the kernel prefers a thread that has hardly run. The setting tricks.spare_threads turns it off.
// Delete when layers are fetched in a process of their own, as they are unpacked in one.

package imagestore

import (
	"os"
	"runtime"
	"sync"
)

// processors has Go run more goroutines at the same time while images are pulled. To fetch and to
// unpack layers is computing without a pause: each such goroutine keeps one of GOMAXPROCS slots for
// ten milliseconds at a time, and where they keep all, the end of a process waits for one at each
// step until it is settled. With slots to spare that goroutine is a thread, which the kernel runs
// at once because it has hardly used the processor. The unpacking threads do not get a lower
// priority: the garbage collector waits for every thread now and then, and then all would wait for
// those.
type processors struct {
	off   bool
	mu    sync.Mutex
	base  int // GOMAXPROCS without any pull
	extra int
}

// more adds n slots until done is called.
func (p *processors) more(n int) (done func()) {
	p.add(n)
	return func() { p.add(-n) }
}

func (p *processors) add(n int) {
	if p.off {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.extra == 0 {
		p.base = runtime.GOMAXPROCS(0)
	}
	p.extra += n
	if p.extra == 0 && os.Getenv("GOMAXPROCS") == "" {
		runtime.SetDefaultGOMAXPROCS() // which follows the limits of the cgroup again
		return
	}
	runtime.GOMAXPROCS(p.base + p.extra)
}
