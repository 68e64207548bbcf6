// SPDX-License-Identifier: Apache-2.0

// Package budget divides among pods what all of them share: processes, connections, memory. There
// is as much of it as the node can do without, each pod has a share that is smaller, and a part of
// it for sure, whatever the others have taken.
//
// A budget counts what a thing costs, not what it says: a connection that is idle costs as much as
// one that is busy.
//
// # Promises
//
//   - No pod has more than its share. All pods together have no more than there is, but for what
//     each of them has for sure.
//   - What is refused is an error that names the pod and says what to do, and is counted.
//   - Nothing waits, and nothing is kept of a pod that has nothing.
//
// # Never
//
// This package never takes anything from a pod: whoever holds it gives it back.
//
// # To look at it live
//
// The metrics berth_budget_used, berth_budget_limit and berth_budget_refused_total.
package budget
