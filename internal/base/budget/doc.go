// SPDX-License-Identifier: Apache-2.0

// Package budget divides a shared resource among pods: processes, connections, memory. Its size is
// as much as the node can do without. Each pod has a smaller share, and a part of it that is
// guaranteed even if the others have taken all the rest.
//
// A budget counts the cost of a thing and not its activity: an idle connection costs as much as a
// busy one.
//
// # Promises
//
//   - No pod has more than its share. All pods together have no more than the size, except for the
//     guaranteed part of each.
//   - A refusal is an error that names the pod and the remedy, and is counted.
//   - Nothing waits, and nothing is kept of a pod that has nothing.
//
// # Never
//
// This package never takes anything from a pod: the holder gives it back.
//
// # To look at it live
//
// The metrics berth_budget_used, berth_budget_limit and berth_budget_refused_total.
package budget
