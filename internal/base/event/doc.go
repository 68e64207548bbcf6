// SPDX-License-Identifier: Apache-2.0

// Package event has one type for each thing that can happen to a sandbox, to a container or to the
// node, and the text of each.
//
// An event is a value. Its maker only states the fact:
//
//	obs.Note(u.id, event.StopRequested{By: event.ClientOf(ctx), Timeout: timeout})
//
// The log line, the timeline, the metrics and the traces are derived from it in one place, package
// observe. [Entry] adds the time and the object, and is the form in which an event is kept.
//
//	event.go      Event, Line, Actor
//	entry.go      Entry, and its JSON
//	kinds.go      the list of all types
//	every.go      the same for others
//	life.go       making, starting and stopping
//	ends.go       exits and OOM kills
//	release.go    the steps of lanes, releases, removals, orphans
//	records.go    records that are restored, and compared with containerd
//	output.go     the output of containers
//	images.go     pulls, and images that are not allowed
//	resources.go  resources that are asked for, and in effect
//	history.go    starts of berth, crashes, and gaps in the history
//
// # Promises
//
//   - The set is closed: no other package can make an Event of a type of its own.
//   - The message of an event is the same for every event of its type, different from that of every
//     other type, and a string literal, so that grep finds it. It names its subject. Details are in
//     the attributes.
//   - An event does not repeat the ID of its object. If the text of an error names it, the line of
//     an [Entry] has it shortened.
//   - An entry that is written as JSON is read again as it was, with its type.
//
// # To add an event
//
// Declare its type in the file it belongs to, with a line method, and add it to the list in
// kinds.go. `go test ./internal/base/event -update` rewrites testdata/events.golden, which shows
// each event as JSON and as a line.
//
// # Never
//
// The name of a type, and the names of its fields in JSON, do not change, because entries on disk
// have them. A field may be added.
package event
