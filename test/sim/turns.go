// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"
	"testing/synctest"
)

// turns is the order of everything that passes between berth and the world, and between berth and
// its clients. Whoever wants to pass waits for a turn. A turn is given only when every goroutine of
// the story waits for something, to one of those that wait for a turn; who that is depends on the
// seed and on what it wants, not on which goroutine came first. So Go's scheduler has no say in the
// order of effects, but in what happens between two of them inside berth.
type turns struct {
	seed uint64
	wake chan struct{} // holds one "look again"

	mu      sync.Mutex
	asked   map[string]uint64 // how often each was asked for
	waiting []*turn
	over    bool // everything passes
}

// turn is one passage that is waited for.
type turn struct {
	rank uint64
	what string
	come chan struct{}
}

func newTurns(seed uint64) *turns {
	return &turns{seed: seed, wake: make(chan struct{}, 1), asked: map[string]uint64{}}
}

// take waits for a turn to do what is named. No lock may be held that another goroutine could want.
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

func (t *turns) look() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// rank orders those that wait. It is as good as random, and the same each time.
func (t *turns) rank(what string, n uint64) uint64 {
	h := fnv.New64a()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], t.seed)
	binary.LittleEndian.PutUint64(b[8:], n)
	_, _ = h.Write(b[:])
	_, _ = h.Write([]byte(what))
	// FNV leaves the high bits of short inputs alike; this spreads them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// run gives turns until end is called. It must run in the story's bubble.
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
