// SPDX-License-Identifier: Apache-2.0

// Package state keeps the durable records: one per pod sandbox and container, holding
// what was asked for (the intent), where its life stands (the status) and what it still
// holds outside berth.
//
// # Promises
//
//   - [Store.Commit] returns after the change is on disk (fsync), or with an error and
//     nothing changed. All changes of one call become visible together.
//   - Callers that commit at the same time share one transaction and one fsync; none waits
//     for more than the transaction in flight and its own.
//   - A database written by a newer berth is refused by name ([ErrNewer]), one in use by
//     another berth too ([ErrInUse]).
//   - An unreadable record does not keep the others from loading: [Store.Load] returns it
//     among the damaged.
//
// # Never
//
// It knows nothing of CRI flows, containerd or processes: package pod decides what a
// record says. It never caches: readers are served from pod's memory.
//
// # On disk
//
// A bbolt file berth.db; buckets meta (version), sandboxes, containers; per ID two keys,
// ID/intent (written once) and ID/status (rewritten at each step), JSON, CRI
// messages inside as protobuf bytes. To look at it live: `berth inspect` or `bbolt`
// on a copy of the file.
package state
