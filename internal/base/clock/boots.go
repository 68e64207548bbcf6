// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"berth/internal/base/wholefile"
)

// boot is a boot's part of the line.
type boot struct {
	// ID is the kernel's.
	ID string `json:"id"`
	// Begin is where its part begins, when nothing had passed since the boot.
	Begin Instant `json:"begin"`
	// Seen is an instant that it is known to have lived to.
	Seen Instant `json:"seen"`
	// Ended is set if berth was stopped then, and has not begun again in this boot.
	Ended bool `json:"ended,omitempty"`
	// Shift is how far wall time is ahead of the line, as it was seen last.
	Shift time.Duration `json:"shift"`
}

// boots are those that are known, the oldest first. A value is never changed.
type boots []boot

// maxBoots is how many boots are kept. Stamps of older boots count as older than all of them.
const maxBoots = 256

// find returns the boot that an instant belongs to; -1 for one before all of them.
func (bs boots) find(i Instant) int {
	for n, b := range slices.Backward(bs) {
		if !i.Before(b.Begin) {
			return n
		}
	}
	return -1
}

// wallOf returns the wall time of an instant: by the shift of its boot, and not later than the next
// boot began. If the next boot began before the recorded end of this one, because the clock was set
// back between them, the whole boot is shown earlier, so that the order stays.
func (bs boots) wallOf(i Instant) time.Time {
	limit, shift := int64(0), time.Duration(0)
	of := bs.find(i)
	for n := len(bs) - 1; n >= of; n-- {
		seen := bs[0].Begin
		if shift = 0; n >= 0 { // else before all boots that are known
			shift, seen = bs[n].Shift, bs[n].Seen
		}
		if n < len(bs)-1 {
			shift = min(shift, time.Duration(limit-seen.ns))
		}
		if n == of {
			break
		}
		limit = bs[n].Begin.ns + int64(shift)
	}
	wall := i.ns + int64(shift)
	if of < len(bs)-1 {
		wall = min(wall, limit)
	}
	return time.Unix(0, wall).UTC()
}

// plain reports whether wallOf shows each instant as it is stamped.
func (bs boots) plain() bool {
	for _, b := range bs {
		if b.Shift != 0 {
			return false
		}
	}
	return true
}

// instantOf returns the instant of a wall time, which is in the latest boot that had begun by then.
func (bs boots) instantOf(t time.Time) Instant {
	ns := t.UnixNano()
	for n, b := range slices.Backward(bs) {
		if begin := bs.wallOf(b.Begin).UnixNano(); ns >= begin {
			i := b.Begin.Add(time.Duration(ns - begin))
			if n < len(bs)-1 {
				i = Earlier(i, bs[n+1].Begin)
			}
			return i
		}
	}
	return Earlier(Stamped(t), bs[0].Begin)
}

// lived returns how much of the time from i to now the node has lived. The time of boots that are
// not known does not count.
func (bs boots) lived(i, now Instant) time.Duration {
	age := time.Duration(0)
	for n, b := range bs {
		from, to := b.Begin, b.Seen
		if n == len(bs)-1 {
			to = now
		}
		if from.Before(i) {
			from = i
		}
		age += max(0, to.Sub(from))
	}
	return age
}

// Path returns where the boots are, below berth's directory.
func Path(root string) string { return filepath.Join(root, "clock.json") }

// read reads the boots of a file. Without one there are none.
func read(path string) (bs boots, err error) {
	switch err = wholefile.ReadSealed(path, &bs); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, wholefile.ErrDamaged):
		return nil, fmt.Errorf("%w: instants before now are taken for what the clock showed", err)
	}
	return bs, err
}

// write writes the boots to a file, whole or not at all.
func (bs boots) write(path string) error { return wholefile.WriteSealed(path, bs) }
