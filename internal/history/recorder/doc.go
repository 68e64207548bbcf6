// SPDX-License-Identifier: Apache-2.0

// Package recorder is the flight recorder of the node: it keeps what happened to each sandbox and
// container, and to the node, in a bounded ring on the disk, for a person to read.
//
// # Use
//
//	r := recorder.Open(cfg)         // reads the end of the ring
//	r.Add(entry)                    // from anywhere, at any time
//	err := r.Run(ctx)               // reads the rest, and writes
//	r.Recall(ended)                 // once: the exits that are on record
//	err = r.Keep(ctx, id)           // before a record is deleted
//	answer, err := r.Find(ctx, recorder.Query{Of: "web"})
//	err = r.Close()                 // writes what is left
//
// # Promises
//
//   - Add does not block and does no I/O. An entry is handed to the kernel within a second, so a kill
//     of berth loses nothing older.
//   - An exit survives a power cut, too. Nothing is synced for it while a client waits for the exit:
//     the commit of the exit has it in the record, and the next berth copies it from there if the
//     ring lacks it ([Recorder.Recall]). The ring is synced before the record is deleted
//     ([Recorder.Keep]), within a bound: a disk that takes nothing does not hold up the removal, and
//     then the exit may be lost, which the log says.
//   - The ring has a size and an age. What is older is dropped by the segment. The first and the last
//     crash of each series, with their number, the last lines of the log and what was used, are
//     carried over.
//   - The disk is full, absent or does not answer: the recorder goes on in memory, within a bound.
//     When the disk is well again an entry says how many entries were lost, and of which time.
//   - An end that was torn by a power cut, a damaged segment and one of a newer berth cost what is in
//     them, and nothing else. An entry says so.
//   - No sandbox or container fills the ring alone: of what happens to one, a segment takes a bounded
//     number of entries.
//
// # Never
//
// Nothing is decided by what is here, and no call fails because of it.
//
// # What is where
//
//	recorder.go  Recorder: entries come in, and become numbered items
//	course.go    how far the latest entries have come on their way to the disk: a diagram
//	writer.go    the goroutine that writes, syncs and drops
//	ring.go      the segments on the disk
//	frame.go     the payload of a record
//	index.go     what belongs to which ID and name
//	crash.go     series of crashes, and the last that was seen of a container
//	answer.go    questions, and entries in words
//	batch.go     everything, in parts, for a program
//	stored.go    everything of a berth that does not run
//
// # On disk
//
// A segment is a file NUMBER.rec, written from its beginning to its end and never again. Its records
// are those of package frame. They are not aligned to blocks, since no sync belongs to each. The first record of a segment has the number of
// the format and no entry. Each segment has an epoch of its own, a random one: what a power cut
// uncovers of a file that was deleted is not taken for a record.
//
// The payload is JSON: the entry as package event writes it, and the names of what it happened to, so
// that each can be read without the others.
//
// In memory are 12 bytes for each entry, and the latest entries themselves, which are answered with
// while the disk does not answer.
//
// # To look at it live
//
// berth timeline NAME, berth timeline --node.
package recorder
