// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"slices"

	"berth/internal/base/clock"
)

// course has the latest entries and how far they have come on their way to the disk. It is pure.
// [course.move] is the only way from one stage to the next.
//
//	memory                    there is no directory: all is written as soon as it is added
//
//	opened ──▶ idle ◀──▶ busy ──▶ failing ──▶ busy     the writer
//	  │         │         │         │
//	  └─────────┴────┬────┴─────────┘
//	                 ▼
//	               ended      the writer has returned, and Close may write
//
// The entries are one list by their numbers, and stand in it by how far they have come:
//
//		written │ being written │ waiting
//
//	  - add appends one that waits.
//	  - take begins to write those that wait, as many as a batch has, and the disk is asked without a lock.
//	  - took ends that: they are written, or they wait again.
//	  - trim drops what memory does not hold: of those that are written all but the latest, and where
//	    the disk takes nothing the oldest that wait, which are lost.
type course struct {
	at      stage
	items   []item
	written int   // so many of items, from the first
	writing int   // so many after those; 0 unless the stage is busy, or Close writes
	bytes   int   // of the payloads
	reason  error // why the last write failed; nil if it did not
	lost    losses
}

// stage is what the writer is doing.
type stage string

const (
	stageMemory  stage = "memory"  // there is none
	stageOpened  stage = "opened"  // it was not started
	stageIdle    stage = "idle"    // it waits for entries
	stageBusy    stage = "busy"    // it waits for the disk
	stageFailing stage = "failing" // it waits before it tries again
	stageEnded   stage = "ended"   // it has returned
)

// moves are the stages that follow each stage.
var moves = map[stage][]stage{
	stageMemory:  {},
	stageOpened:  {stageIdle, stageEnded},
	stageIdle:    {stageBusy, stageEnded},
	stageBusy:    {stageIdle, stageFailing, stageEnded},
	stageFailing: {stageBusy, stageEnded},
	stageEnded:   {},
}

// The latest entries are kept in memory: of those that are written the last keepItems, and of all
// as many as maxItems and maxBytes allow.
const (
	keepItems = 2048
	maxItems  = 16384
	maxBytes  = 16 << 20
)

// item is an entry with its number, as it is stored.
type item struct {
	number  uint64
	at      clock.Instant
	payload []byte
}

// losses are entries that were dropped before they were written.
type losses struct {
	count    int
	from, to clock.Instant
}

func (l *losses) add(at clock.Instant) {
	if l.count == 0 {
		l.from = at
	}
	l.count, l.to = l.count+1, at
}

// move goes to the next stage. A stage that does not follow leaves c as it is.
func (c *course) move(to stage) {
	if slices.Contains(moves[c.at], to) {
		c.at = to
	}
}

// add appends an entry, which has the highest number.
func (c *course) add(it item) {
	c.items = append(c.items, it)
	c.bytes += len(it.payload)
	if c.at == stageMemory {
		c.written++
	}
}

// take returns the next batch that is to be written. [course.took] follows.
func (c *course) take() []item {
	size := 0
	for _, it := range c.items[c.written:] {
		if size += len(it.payload); size > maxBatch && c.writing > 0 {
			break
		}
		c.writing++
	}
	return c.items[c.written : c.written+c.writing : c.written+c.writing]
}

// took notes how the write of a batch ended.
func (c *course) took(err error) {
	if err == nil {
		c.written += c.writing
	}
	c.writing, c.reason = 0, err
}

// trim drops the entries that memory does not hold, and returns those that are lost.
func (c *course) trim() (lost []item) {
	if len(c.items) > 2*keepItems || c.bytes > maxBytes {
		n := 0
		for ; n < c.written && (len(c.items)-n > keepItems || c.bytes > maxBytes); n++ {
			c.bytes -= len(c.items[n].payload)
		}
		clear(c.items[:n])
		c.items, c.written = c.items[n:], c.written-n
	}
	from := c.written + c.writing
	n := from
	for ; n < len(c.items) && (len(c.items)-(n-from) > maxItems || c.bytes > maxBytes); n++ {
		c.bytes -= len(c.items[n].payload)
		c.lost.add(c.items[n].at)
	}
	lost = slices.Clone(c.items[from:n])
	c.items = slices.Delete(c.items, from, n)
	return lost
}

// find returns the payloads of the entries with some ascending numbers.
func (c *course) find(numbers []uint64) map[uint64][]byte {
	found := map[uint64][]byte{}
	i := 0
	for _, it := range c.items {
		for i < len(numbers) && numbers[i] < it.number {
			i++
		}
		if i < len(numbers) && numbers[i] == it.number {
			found[it.number] = it.payload
		}
	}
	return found
}
