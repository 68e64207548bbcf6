// SPDX-License-Identifier: Apache-2.0

// Package lane runs work per ID: in order and one at a time for one ID, independently across
// IDs, retried with a back-off of its own, never dropped and never overtaken.
//
// The [Machine] is pure: no goroutine, no lock, no clock, no I/O. The [Runner] is the shell round
// it that owns them. Whoever wants to drive a Machine by hand (a simulation, a test) owes it,
// in this order:
//
//  1. Offer what arrives, whenever it arrives, with the time of the offer.
//  2. Call Ready until it says no, and begin each attempt that it hands out.
//  3. Call Done exactly once for each of them when it ended, with how.
//  4. Sleep until NextWake at the latest, or until something else happened; back to 2.
//
// Time given to a Machine must not go backwards.
//
// # Promises
//
//   - An item offered to an ID while an attempt on that ID is in flight is handled by a later
//     attempt: never lost, never merged into what runs already, never before it.
//   - The head of a lane is attempted until it is done. What was offered later waits behind it.
//   - One attempt per ID at a time, whatever its deadline says. An attempt past its
//     deadline has its context cancelled and is overdue; the lane moves on when it returns.
//   - IDs do not wait for each other: there is no pool that wedged lanes could fill.
//   - Bounded: equal items that wait are folded together by the Coalesce function, a lane holds
//     at most MaxQueue items, an idle lane holds no memory.
//
// # To look at it live
//
// [Runner.Snapshot] lists the lanes that are not idle; `berth debug lanes` prints it.
package lane
