// SPDX-License-Identifier: Apache-2.0

package retry

// Wake wakes the goroutine that receives from it. It holds one token, so a wake-up is not lost
// between the receiver's look at its work and its wait, and any number of them are one.
type Wake chan struct{}

// NewWake returns a Wake without a token.
func NewWake() Wake { return make(Wake, 1) }

// Up leaves a token, if none is there. It never blocks.
func (w Wake) Up() {
	select {
	case w <- struct{}{}:
	default:
	}
}
