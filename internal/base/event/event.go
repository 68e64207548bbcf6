// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"reflect"
)

// Event is something that happened. The types of this package are all there are; kinds.go lists
// them.
type Event interface {
	line() Line
}

// Actor is the cause of an event, as far as it is known.
type Actor string

// The actors.
const (
	Berth      Actor = "berth"      // by itself: a step of a lane, the audit, the recovery
	Call       Actor = "call"       // a call of CRI: the kubelet's, crictl's, or a person's
	Kernel     Actor = "kernel"     // its action or report
	Containerd Actor = "containerd" // its report, of its own or for a shim
)

// Line is the text of an event.
type Line struct {
	Level   slog.Level
	Actor   Actor
	Message string
	// Attrs are the details in which events with the same message differ, without the error.
	Attrs []slog.Attr
	// Err is the text of the error that caused it, or "".
	Err string
}

// Describe returns the text of an event.
func Describe(e Event) Line { return e.line() }

// Kind returns the name of an event's type.
func Kind(e Event) string { return reflect.TypeOf(e).Name() }

// info is the line of an event after which everything is in order.
func info(by Actor, message string, attrs ...slog.Attr) Line {
	return Line{Level: slog.LevelInfo, Actor: by, Message: message, Attrs: attrs}
}

// step is the line of an event on the way from one state to the next. The history has all of them,
// and the log the states: a node has thousands of each a day.
func step(by Actor, message string, attrs ...slog.Attr) Line {
	return Line{Level: slog.LevelDebug, Actor: by, Message: message, Attrs: attrs}
}

// warn is the line of an event that a person may have to look into. why is the text of an error, or
// "".
func warn(by Actor, message, why string, attrs ...slog.Attr) Line {
	return Line{Level: slog.LevelWarn, Actor: by, Message: message, Attrs: attrs, Err: why}
}
