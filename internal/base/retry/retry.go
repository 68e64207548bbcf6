// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"iter"
	"time"
)

// Doubling yields once for each attempt, the first at once, and gives the loop the wait that
// follows the attempt: first, then twice as long each time, longest at most. The loop ends when
// done is closed during a wait. A caller whose attempt succeeded leaves the loop.
func Doubling(done <-chan struct{}, first, longest time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for wait := first; yield(wait) && Sleep(done, wait); wait = min(2*wait, longest) {
		}
	}
}

// Closed reports whether a channel that nothing is sent on was closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Sleep waits for d. It returns early, and false, when done is closed.
func Sleep(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
		return false
	}
}
