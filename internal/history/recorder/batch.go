// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"encoding/json"
	"slices"

	"berth/internal/base/clock"
	"berth/internal/base/event"
)

const (
	// batchRecords is how many records a batch has at most, and batchBytes how many bytes they take
	// together, which leaves room in a message of gRPC.
	batchRecords = 5000
	batchBytes   = 4 << 20
)

// Record is an entry as it is stored, with the names of what it is about as they are known now.
type Record struct {
	Number uint64          `json:"number"`
	Of     event.Names     `json:"of,omitzero"`
	Entry  json.RawMessage `json:"entry"` // an event.Entry
}

// Batch is a part of everything that happened on the node, in the order of the numbers.
type Batch struct {
	Records []Record `json:"records"`
	// Last is the number to ask on after, and More says that there is more by now.
	Last uint64 `json:"last"`
	More bool   `json:"more,omitempty"`
	// Missing says in words what could not be read, or is "".
	Missing string `json:"missing,omitempty"`
}

// Batch returns what happened on the node after a number, the oldest first, and leaves out what is
// older than since. Whoever wants everything begins after 0 and asks on while there is more. Where
// Find answers a person, with the latest entries, this is for a program that draws all of them.
//
// What cannot be read within a bound of seconds is left out, and Missing says so.
func (r *Recorder) Batch(ctx context.Context, after uint64, since clock.Instant) Batch {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	b := Batch{Records: []Record{}, Last: after}
	select {
	case <-r.loaded:
	case <-ctx.Done():
		b.Missing = "the history of before is being read, or its disk does not answer"
	}
	r.mu.Lock()
	r.absorbLocked()
	var numbers []uint64
	of := map[uint64]event.Names{}
	for _, h := range r.index.byID {
		i, _ := slices.BinarySearch(h.numbers, after+1)
		numbers = append(numbers, h.numbers[i:]...)
		for _, n := range h.numbers[i:] {
			of[n] = h.names
		}
	}
	slices.Sort(numbers)
	total := len(numbers)
	page := numbers[:min(total, batchRecords)]
	found := r.course.find(page)
	if r.ring != nil && len(found) < len(page) {
		absent := slices.DeleteFunc(slices.Clone(page), func(n uint64) bool { return found[n] != nil })
		r.mu.Unlock()
		older, err := r.read(ctx, r.ring.find(absent))
		r.mu.Lock()
		if err != nil { // go on with what is in memory, so that nobody asks for the rest in vain
			b.Missing = "what is older is on a disk that does not answer"
			page = numbers
			found = r.course.find(page)
		}
		for n, payload := range older {
			found[n] = payload
		}
	}
	r.mu.Unlock()

	size := 0
	for i, n := range page {
		size += len(found[n])
		if size > batchBytes && i > 0 {
			break
		}
		b.Last = n
		b.More = i+1 < total
		var p stored
		var when struct {
			At clock.Instant `json:"at"`
		}
		if found[n] == nil || json.Unmarshal(found[n], &p) != nil || json.Unmarshal(p.Entry, &when) != nil || when.At.Before(since) {
			continue
		}
		if names := of[n]; names != (event.Names{}) {
			p.Of = names
		}
		b.Records = append(b.Records, Record{n, p.Of, p.Entry})
	}
	return b
}
