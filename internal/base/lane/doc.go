// SPDX-License-Identifier: Apache-2.0

// Package lane runs the work of each key in a lane of its own: in order and one attempt at a time
// within a lane, independently of all other lanes, and retried with a back-off until it is done.
//
// The [Machine] is pure: it has no goroutine, lock, clock or I/O. The [Runner] is the shell around
// it that has them. The driver of a Machine (the Runner, a simulation, a test) owes it the
// following, in this order:
//
//  1. Call Offer for each item as it arrives, with the time of its arrival.
//  2. Call Ready until it reports false, and begin each attempt that it returns.
//  3. Call Done exactly once for each attempt when it has ended, with its result.
//  4. Sleep until NextWake at the latest, or until an item arrives or an attempt ends; then go on
//     with 2.
//
// The times that a Machine is given must not go backwards.
//
// # Promises
//
//   - An item that is offered while an attempt on its key is in flight is handled by a later
//     attempt: it is never lost, never merged into the attempt in flight and never handled before
//     it.
//   - The head of a lane is attempted until it is done. Items that were offered later wait behind
//     it.
//   - There is one attempt per key at a time, even if it has run past its deadline. The context of
//     such an attempt has ended; the lane is overdue, and goes on when the attempt returns.
//   - Lanes do not wait for each other: there is no worker pool that stuck lanes could exhaust.
//   - Everything is bounded: an item that equals the last waiting one is folded into it, a lane
//     holds at most MaxQueue items, and an idle lane without a waiter holds no memory.
//   - A panic of the handler is a failed attempt whose error is a [*PanicError].
//
// # Deadlines that grow
//
// Slow is not stuck: work that needs 30 seconds would never be done in attempts that are cut off
// after 10. The deadline of a head's next attempt is therefore twice as long whenever an attempt on
// it failed at or past its own deadline, up to MaxDeadline. Three things do not change the
// deadline:
//
//   - A failure before the deadline. It means that something is wrong, not that there was too
//     little time. If each failure counted, a few refused connections would be enough to let the
//     first attempt that really hangs hold its lane for MaxDeadline.
//   - A Poke. A waiter asks again and again, and each time the deadline would start from the
//     beginning. A poke only ends the back-off.
//   - A failure that ends with [RetryWithin]. Such work has to be tried often, so it must not be
//     left inside one long attempt either.
//
// The deadline starts from the beginning for the next head.
//
// # Waiting
//
// The result of a lane is an [Event], and waiting for one needs a [Waiter] of that lane. It ends
// the back-off, and keeps it at Config.Awaited at most while it is there. So no waiter waits for
// minutes because an attempt had failed often before, or fails again meanwhile.
//
// # Pace
//
// Lanes do not wait for each other, and share processors and disks all the same. A [Pacer] lets
// work that can wait, a release, begin when it is not in the way of work that cannot, a settle. Its
// waits are bounded.
//
// # To look at it live
//
// [Runner.Snapshot] lists the lanes that are not idle; `berth debug lanes` prints them.
package lane
