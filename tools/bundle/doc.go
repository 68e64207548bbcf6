// SPDX-License-Identifier: Apache-2.0

// Package bundle writes what happened on a node in some time into one file, and reads it again, so
// that an incident can be read elsewhere, and the simulation can play it.
//
// # Use
//
//	b := bundle.New(bundle.Manifest{...}, node)
//	b.Add(record)                     // of the flight recorder, one after the other
//	err := b.Write(f)                 // once
//	b, err := bundle.Read(f)
//	for _, v := range b.Verdicts() { ... }
//
// # What is in it
//
// A tar archive, compressed with gzip:
//
//	manifest.json       the number of the format, versions, the span of time, and what is missing
//	configuration.json  those settings that are numbers, yes or no, or words that berth knows
//	records.jsonl       a sandbox or container a line, as berth knows it at the end
//	entries.jsonl       an entry of the timeline a line, in the order in which they were made
//
// An entry is one of package event. That of an exit has the report of each witness with its
// instant, and the simulation plays these ([berth/test/sim]).
//
// # Promises
//
//   - No secret is in it: a text is written only if its field is in the table of allow.go, and if it
//     is a name (of a namespace, pod, container or image, and the UID of a pod) or one of the words
//     in words.go. Of an error only those of its words are written that are in that list. So there
//     are no commands, environment variables, annotations, labels, log lines, paths, addresses, and
//     no texts of errors.
//   - An event of an unknown kind is left out, and the manifest counts them.
//   - It is bounded: beyond [MaxEntries] the oldest entries are left out, and the manifest counts
//     them.
//   - A bundle of a newer format is refused with [ErrFormat]. A field that is not known is ignored.
//   - Reading a file from anywhere takes a bounded amount of memory.
//
// # Never
//
// It asks neither berth nor the host: the caller of New and Add brings everything.
//
//	bundle.go         Bundle, Manifest, Record, Verdict
//	allow.go          the texts of events that are written
//	words.go          the words that are written
//	configuration.go  the settings that are written
//	file.go           the file
package bundle
