// SPDX-License-Identifier: Apache-2.0

// Package state keeps the records: one for each pod sandbox and container, on disk. A record
// contains the request (the intent), how far its life has come (the status) and the objects that it
// still holds outside berth (the holds).
//
// # Use
//
//	s, err := state.Open(dir)
//	all, err := s.Load()                                    // once, before the first Commit
//	err = s.Commit(state.NewContainer(c, status))           // before anything is made
//	err = s.Commit(state.ContainerStatus(id, status))       // at each step
//	err = s.Commit(state.DeleteContainer(id))               // when nothing is held any more
//
// # Promises
//
//   - [Store.Commit] returns nil after the changes are on disk, or an error, and then nothing has
//     changed. The changes of one call become visible together, also through a crash.
//   - Callers that commit at the same time share one transaction. None of them waits for more than
//     the transaction in flight and its own, nor for the database while the journal takes its
//     record, and none gets the error of another.
//   - A status is written only for a record that exists: a status that lost a race against the
//     deletion of its record is refused with errdefs.ErrNotFound.
//   - A record that cannot be read does not keep the others from loading. [Store.Load] returns its
//     readable fields, and it can be deleted like any other.
//   - A database is refused by name if a newer berth wrote it, or wrote a record into it that this
//     one cannot read ([ErrNewer]), if another berth has it open ([ErrInUse]), or if its file is one
//     of something else, or damaged and on a disk that cannot be written ([ErrDamaged]).
//   - One changed bit in a file is repaired. If the damage is larger, everything readable is
//     loaded, no record is taken for another, and the rest is named: see [Salvage].
//   - After Close everything is in berth.db, and berths that know no journal read it.
//   - Records on a disk that can only be read are loaded. Commits fail with errdefs.ErrUnavailable
//     then, as they do after any error of the disk, and succeed once the disk can be written:
//     nothing has to be opened again by the caller. [Store.NotWritten] reports whether they fail,
//     at once and from memory, and [Store.Watch] finds out, even without commits.
//
// # Never
//
// It does not know CRI calls, containerd or processes: package pod decides the content of a record.
// It caches nothing, because readers are served from pod's memory. It writes no log.
//
// # Panics
//
// A panic inside a transaction ends the process, wherever it was called from: bbolt's memory may
// not agree with the file any more, and another commit could destroy the records. Lanes and gRPC
// calls recover from panics, so Commit ends the process itself, with the stack.
//
// # On disk
//
// The bbolt file berth.db has the buckets meta (version, owner), sandboxes and containers. Each
// record has two keys: ID/intent, written once, and ID/status, rewritten at each step. Both are
// JSON. CRI messages in it are protobuf, except the resources of updates, which are JSON by the
// names of their fields.
//
// Each value ends with a checksum (seal.go), and the bucket meta has its own checksum and the sum
// of those of all records, so that neither a value nor a page of an earlier transaction is taken
// for another. Before bbolt opens the file, Open reads it page by page without it (pages.go),
// because bbolt panics at an unreadable page, and writes a damaged one anew (salvage.go). The ID of
// the owner is in berth.owner as well.
//
// A bbolt transaction costs two fdatasyncs: one for the pages it wrote, one for the page that makes
// them valid. Neither can be left out: a crash between the two is harmless only because of their
// order. So a commit does not wait for one. It is one synchronous write of a record to the file
// berth.journal, whose size never changes, and its entries are served from memory. The journal has
// two halves. When one is full the commits go on in the other, and the entries of the full one go
// into the database in one transaction beside them. A commit waits for that only when the other
// half is full as well by then.
//
// A record has a number and a checksum, and begins at a block of its own. Open takes the records
// whose numbers follow, one by one, the number up to which the database has them, wherever in the
// journal they are. A record that is not whole was being written when power was cut, and was never
// answered for. If one of a higher number is whole, a record that was committed is damaged, and
// Open reports that and goes on with the others, which it brings into the database at once.
//
// A commit that the journal does not take, because it is full or its disk fails, goes into the
// database, together with all that only the journal has; where that fails too, the commit does.
// After an error of its disk the journal is left alone for a second, and until all that was tried
// is in the database. Then it is written again, from its beginning.
//
// The version in the database is 3 as long as a journal belongs to it, with a random ID of that use
// of the journal, and 1 before the first commit and after Close. Closing folds the journal. Version
// 2, of an earlier berth that was killed, has a journal without halves: it is read, and the first
// commit brings it into the database and makes the version 3.
//
// # To look at it live
//
// berth inspect ID, or, after berth was stopped, the bbolt tool on a copy of the file.
package state
