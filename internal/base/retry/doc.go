// SPDX-License-Identifier: Apache-2.0

// Package retry waits between the attempts of one thing: for a first span, then for twice as long
// each time, up to a longest.
//
// It promises that a wait ends early when the caller's channel is closed, and that it leaves no
// timer and no goroutine behind. It never decides whether there is another attempt: the caller's
// loop does. Retries that need an order, jitter or the background belong to a lane (package lane).
package retry
