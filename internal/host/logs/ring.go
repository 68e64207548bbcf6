// SPDX-License-Identifier: Apache-2.0

package logs

import "sort"

const (
	// ringSize is how many bytes of output a ring keeps for readers that are slow.
	ringSize = 1 << 20
	// firstRing is the size of a ring that has just begun.
	firstRing = 4 << 10
	// maxTurns is how often the output that a ring keeps may change between stdout and stderr. A
	// change is kept in 16 bytes, so all changes together cost less than the output does.
	maxTurns = 16 << 10
	// maxPiece is how much output a reader takes at once.
	maxPiece = 32 << 10
)

// ring is the newest output of a container, of both streams in the order in which it came. Its cost
// is ringSize plus the changes of stream, regardless of the number of pieces and readers.
//
// A position counts the bytes since the ring began. The byte at position p is buf[p%len(buf)].
type ring struct {
	buf      []byte
	from, to int64  // the positions of the bytes that are kept
	turns    []turn // in order; the first is at from or before it
}

// turn is a position from which on the output is of another stream.
type turn struct {
	at     int64
	stderr bool
}

// put adds output, and overwrites the oldest if there is no room.
func (r *ring) put(b []byte, stderr bool) {
	if len(b) == 0 {
		return
	}
	if n := len(r.turns); n == 0 || r.turns[n-1].stderr != stderr {
		r.turns = append(r.turns, turn{r.to, stderr})
	}
	r.grow(len(b))
	if extra := len(b) - len(r.buf); extra > 0 {
		r.to += int64(extra)
		b = b[extra:]
	}
	for len(b) > 0 {
		n := copy(r.buf[r.to%int64(len(r.buf)):], b)
		r.to += int64(n)
		b = b[n:]
	}
	r.from = max(r.from, r.to-int64(len(r.buf)))
	if extra := len(r.turns) - maxTurns; extra > 0 {
		r.from = max(r.from, r.turns[extra].at)
	}
	r.turns = r.turns[r.turnAt(r.from):]
}

// grow makes room for n bytes more, up to ringSize in all.
func (r *ring) grow(n int) {
	size := max(len(r.buf), firstRing)
	for size < ringSize && int64(size) < r.to-r.from+int64(n) {
		size *= 2
	}
	if size == len(r.buf) {
		return
	}
	larger := make([]byte, size)
	for at := r.from; at < r.to; {
		at += int64(copy(larger[at%int64(size):], r.part(at, r.to)))
	}
	r.buf = larger
}

// part returns the output from a position on that is in one place, up to another position.
func (r *ring) part(at, end int64) []byte {
	size := int64(len(r.buf))
	return r.buf[at%size : min(at%size+end-at, size)]
}

// turnAt returns the index of the turn that the byte at a position belongs to.
func (r *ring) turnAt(at int64) int {
	return max(0, sort.Search(len(r.turns), func(i int) bool { return r.turns[i].at > at })-1)
}

// next copies some output of one stream, from a position that it moves, up to end. lost is how many
// bytes from the position on are not kept any more. There may be no output left after a loss.
func (r *ring) next(at *int64, end int64) (b []byte, stderr bool, lost int64) {
	if *at < r.from {
		lost = min(r.from, end) - *at
		*at += lost
	}
	if *at >= end {
		return nil, false, lost
	}
	i := r.turnAt(*at)
	if i+1 < len(r.turns) {
		end = min(end, r.turns[i+1].at)
	}
	b = append(b, r.part(*at, min(end, *at+maxPiece))...)
	*at += int64(len(b))
	return b, r.turns[i].stderr, lost
}
