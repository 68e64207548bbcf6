// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"slices"
	"testing"
	"time"

	"berth/internal/base/clock"
)

// Each row is what happens to the entries 1, 2, 3 …, and where they are afterwards.
func TestTheCourseOfEntries(t *testing.T) {
	ok, full := error(nil), errors.New("the disk is full")
	type step = func(c *course)
	last := uint64(0)
	add := func(n int) step {
		return func(c *course) {
			for range n {
				last++
				c.add(item{last, clock.Stamped(time.Unix(int64(last), 0)), make([]byte, maxBatch/4)})
			}
		}
	}
	small := func(n int) step {
		return func(c *course) {
			for range n {
				last++
				c.add(item{last, clock.Stamped(time.Unix(int64(last), 0)), nil})
			}
		}
	}
	take := func(c *course) { c.take() }
	took := func(err error) step { return func(c *course) { c.took(err) } }
	trim := func(c *course) { c.trim() }
	for _, tt := range []struct {
		name                      string
		at                        stage
		steps                     []step
		written, writing, waiting int
		lost                      int
		first                     uint64 // in memory
	}{
		{"nothing is added", stageIdle, []step{take, took(ok), trim}, 0, 0, 0, 0, 0},
		{"without a disk all is written", stageMemory, []step{add(3), trim}, 3, 0, 0, 0, 1},
		{"entries wait", stageOpened, []step{add(3)}, 0, 0, 3, 0, 1},
		{"a batch is bounded", stageBusy, []step{add(7), take}, 0, 4, 3, 0, 1},
		{"a batch is written", stageBusy, []step{add(7), take, took(ok)}, 4, 0, 3, 0, 1},
		{"a batch is not written", stageBusy, []step{add(7), take, took(full)}, 0, 0, 7, 0, 1},
		{"it is taken again, with those that came", stageBusy, []step{add(2), take, took(full), add(2), take}, 0, 4, 0, 0, 1},
		{"the latest that are written stay", stageIdle, []step{small(3 * keepItems), take, took(ok), trim}, keepItems, 0, 0, 0, 2*keepItems + 1},
		{"those that wait stay", stageIdle, []step{small(3 * keepItems), trim}, 0, 0, 3 * keepItems, 0, 1},
		{"the oldest that wait are lost", stageIdle, []step{small(maxItems + 10), trim}, 0, 0, maxItems, 10, 11},
		{"those that are being written are not", stageBusy, []step{small(9), take, small(maxItems), trim}, 0, 9, maxItems - 9, 9, 1},
		{"they were not written", stageBusy, []step{small(9), take, small(maxItems), trim, took(full), trim}, 0, 0, maxItems, 9, 1},
		{"those that are written go first", stageIdle, []step{small(keepItems), take, took(ok), small(maxItems), trim}, 0, 0, maxItems, 0, keepItems + 1},
		{"bytes are bounded", stageIdle, []step{add(300), trim}, 0, 0, 256, 44, 45},
		{"bytes are bounded without a disk", stageMemory, []step{add(300), trim}, 256, 0, 0, 0, 45},
	} {
		c, before := course{at: tt.at}, last
		for _, s := range tt.steps {
			s(&c)
		}
		first, bytes := uint64(0), 0
		if len(c.items) > 0 {
			first = c.items[0].number - before
		}
		for _, it := range c.items {
			bytes += len(it.payload)
		}
		waiting := len(c.items) - c.written - c.writing
		if c.written != tt.written || c.writing != tt.writing || waiting != tt.waiting || c.lost.count != tt.lost || first != tt.first || bytes != c.bytes {
			t.Errorf("%s: %d, %d and %d, %d lost, from %d on, %d bytes are %d", tt.name, c.written, c.writing, waiting, c.lost.count, first, bytes, c.bytes)
		}
		if !slices.IsSortedFunc(c.items, func(a, b item) int { return a.at.Compare(b.at) }) {
			t.Errorf("%s: the entries are not in their order", tt.name)
		}
	}
}

// The stages of the writer: each pair that is drawn is a move, and no other is.
func TestTheStagesOfTheWriter(t *testing.T) {
	drawn := map[[2]stage]bool{
		{stageOpened, stageIdle}: true, {stageOpened, stageEnded}: true,
		{stageIdle, stageBusy}: true, {stageIdle, stageEnded}: true,
		{stageBusy, stageIdle}: true, {stageBusy, stageFailing}: true, {stageBusy, stageEnded}: true,
		{stageFailing, stageBusy}: true, {stageFailing, stageEnded}: true,
	}
	for from := range moves {
		for to := range moves {
			c := course{at: from}
			if c.move(to); (c.at == to) != (drawn[[2]stage{from, to}] || from == to) {
				t.Errorf("from %s to %s it is %s", from, to, c.at)
			}
		}
	}
}
