// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"
	"testing/synctest"

	"berth/internal/base/retry"
)

// turns is the order of everything that passes between berth and the world, and between berth and
// its clients. A goroutine that wants to pass waits for a turn. The next turn is given when every
// goroutine of the story is blocked, to one of those that wait for a turn. The choice depends on
// the seed and on the intended calls, not on which goroutine came first. So Go's scheduler does not
// decide the order of effects, only the order inside berth between two of them.
//
// No goroutine may hold a lock (sync.Mutex) while it waits for its turn: those that wait for the
// lock would not count as blocked, and no turn would be given any more.
type turns struct {
	seed uint64
	wake retry.Wake // holds one "look again"

	mu      sync.Mutex
	asked   map[string]uint64 // how often each passage was asked for
	waiting []*turn
	over    bool // everything passes
}

// turn is one passage that somebody waits for.
type turn struct {
	rank uint64
	what string
	come chan struct{}
}

func newTurns(seed uint64) *turns {
	return &turns{seed: seed, wake: retry.NewWake(), asked: map[string]uint64{}}
}

// take waits for a turn for a named call.
func (t *turns) take(what string) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.asked[what]++
	n := &turn{rank: t.rank(what, t.asked[what]), what: what, come: make(chan struct{})}
	t.waiting = append(t.waiting, n)
	t.mu.Unlock()
	t.look()
	<-n.come
}

// free reports whether everything passes.
func (t *turns) free() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

func (t *turns) look() {
	t.wake.Up()
}

// rank is a number that looks random, and is the same for the n-th passage of a name each time the
// seed is played. As it depends on nothing else, one passage more or less does not change the order
// of all that follow.
func (t *turns) rank(what string, n uint64) uint64 {
	h := fnv.New64a()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], t.seed)
	binary.LittleEndian.PutUint64(b[8:], n)
	_, _ = h.Write(b[:])
	_, _ = h.Write([]byte(what))
	// The high bits of FNV hardly differ between short inputs: mix them with the low ones.
	x := h.Sum64()
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// run gives turns until end is called. It must run in the story's bubble, and only once: a bubble
// has room for one synctest.Wait at a time.
func (t *turns) run() {
	for range t.wake {
		for {
			synctest.Wait()
			n, over := t.next()
			if over {
				return
			}
			if n == nil {
				break
			}
			close(n.come)
		}
	}
}

func (t *turns) next() (n *turn, over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, true
	}
	if len(t.waiting) == 0 {
		return nil, false
	}
	n = slices.MinFunc(t.waiting, func(a, b *turn) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.what, b.what))
	})
	t.waiting = slices.DeleteFunc(t.waiting, func(o *turn) bool { return o == n })
	return n, false
}

// end lets everything pass from now on.
func (t *turns) end() {
	t.mu.Lock()
	t.over = true
	for _, n := range t.waiting {
		close(n.come)
	}
	t.waiting = nil
	t.mu.Unlock()
	t.look()
}
