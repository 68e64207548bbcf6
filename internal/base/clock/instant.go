// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"cmp"
	"fmt"
	"time"
)

// Instant is a place on the node's own line of time. The zero Instant is none. Instants of one node
// can be compared, and == compares them.
type Instant struct {
	ns int64 // on the line, which begins where wall time was, in nanoseconds since the epoch
}

// Stamped returns the instant of a stamp that has the place of an instant in the form of a time: in
// a record, in an answer of the API, or in a record of a berth that knew no instants.
func Stamped(t time.Time) Instant {
	if t.IsZero() {
		return Instant{}
	}
	return Instant{t.UnixNano()}
}

// Stamp returns the place in the form of a time, of which Stamped makes the instant again. It is
// not wall time, which [Clock.Wall] makes.
func (i Instant) Stamp() time.Time {
	if i.IsZero() {
		return time.Time{}
	}
	return time.Unix(0, i.ns).UTC()
}

// IsZero reports whether there is no instant.
func (i Instant) IsZero() bool { return i == Instant{} }

// Compare returns -1 if i is before j, 1 if it is after j, and else 0.
func (i Instant) Compare(j Instant) int { return cmp.Compare(i.ns, j.ns) }

// Equal reports whether i and j are the same, for packages that compare by it.
func (i Instant) Equal(j Instant) bool { return i == j }

// Before reports whether i is before j.
func (i Instant) Before(j Instant) bool { return i.ns < j.ns }

// After reports whether i is after j.
func (i Instant) After(j Instant) bool { return i.ns > j.ns }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i.ns - j.ns) }

// Add returns the instant that is d after i.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.ns + int64(d)} }

// Earlier returns the first of two instants.
func Earlier(i, j Instant) Instant {
	if j.ns < i.ns {
		return j
	}
	return i
}

// String returns the stamp, for a person who debugs berth.
func (i Instant) String() string { return i.Stamp().Format(time.RFC3339Nano) }

// MarshalJSON writes the stamp.
func (i Instant) MarshalJSON() ([]byte, error) { return i.Stamp().MarshalJSON() }

// UnmarshalJSON reads a stamp.
func (i *Instant) UnmarshalJSON(b []byte) error {
	var t time.Time
	if err := t.UnmarshalJSON(b); err != nil {
		return fmt.Errorf("read an instant: %w", err)
	}
	*i = Stamped(t)
	return nil
}
