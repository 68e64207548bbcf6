// SPDX-License-Identifier: Apache-2.0

// Package feed hands CRI container events to whoever subscribed with GetContainerEvents.
//
// # Promises
//
//   - Publish never blocks and never waits for a subscriber. A queue that is full folds: of each
//     container the latest event stays, in the order of the stamps. Memory is bounded by the number of
//     containers that exist, plus [Config].Queue for those that are gone.
//   - Stamps rise strictly per pod. A stamp is taken before the snapshot that it comes with.
//   - Per pod, a subscriber sees events in the order of their stamps, folded or not.
//   - What nobody has heard yet is kept (folded) for the next subscriber, and so is what was handed to one that
//     left less than [Config].Keep ago: CRI has no acknowledgement, so the last events of a broken
//     stream may never have arrived. The final state of a container is told at least once; some are
//     told twice.
//
// # Never
//
// No goroutine, no I/O. The kubelet's relist stays the net under it.
package feed
