// SPDX-License-Identifier: Apache-2.0

// Package bundle writes what happened on a node in some time into one file, and reads it again, so
// that whoever was not there can see it, and the simulation can play it.
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
// An entry is one of package event. That of an exit has what each witness said, with the instants:
// what the simulation plays ([berth/test/sim]).
//
// # Promises
//
//   - No secret is in it, because of how it is made: nothing is taken away from what there is, but
//     what is written is listed, field by field (allow.go, configuration.go). A text is written only
//     if it is a name (of a namespace, pod, container or image, and the UID of a pod), or one of the
//     words in words.go. Of an error only the words are written that it has of that list. So there are
//     no commands, environment variables, annotations, labels, log lines, paths, addresses, and no
//     texts of errors.
//   - An event of a kind that is not listed is left out, and the manifest says how many there were.
//   - It is bounded: beyond [MaxEntries] the oldest entries are left out, and the manifest says so.
//   - A bundle of a newer format is refused with [ErrFormat]. A field that is not known is ignored.
//   - Reading a file from anywhere takes a bounded amount of memory.
//
// # Never
//
// It decides nothing, and asks nobody: who makes a bundle brings what is to be in it.
//
//	bundle.go         Bundle, Manifest, Record, Verdict
//	allow.go          the fields of each event that are written
//	words.go          the words that are written
//	configuration.go  the settings that are written
//	file.go           the file
package bundle
