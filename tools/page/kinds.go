// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"

	"berth/internal/base/event"
	"berth/internal/base/exit"
)

// weight is how much an entry matters to a person who looks at a whole node. Where not everything
// fits on the page, the lightest go first.
type weight int

const (
	routine weight = iota // steps on the way
	usual                 // beginnings and ends
	notable               // entries that may need an investigation
	grave                 // entries that a person looks for
)

// weights are the weights of the kinds of events that are not routine. A kind is named by its text,
// so that one of a newer berth can be drawn as well.
var weights = map[string]weight{
	"SandboxReady":     usual,
	"ContainerCreated": usual,
	"ContainerRunning": usual,
	"StopRequested":    usual,
	"RemovalRequested": usual,
	"ImagePulled":      usual,
	"ProfilePulled":    usual,
	"Removed":          usual,
	"AccessBegan":      usual,
	"AccessEnded":      usual,

	"ExitSettled":     notable,
	"Degraded":        notable,
	"AttemptFailed":   notable,
	"HostPathSilent":  notable,
	"OutputHeld":      notable,
	"EndHeld":         notable,
	"ShimRestarted":   notable,
	"OOMKillSurvived": notable,
	"ContainerdLost":  notable,
	"AccessRefused":   notable,

	"ContainerCrashed": grave,
	"ExitCorrected":    grave,
	"CodesDiffer":      grave,
	"ExitRecalled":     grave,
	"SandboxNotMade":   grave,
	"ContainerNotMade": grave,
	"StartFailed":      grave,
	"ShimDied":         grave,
	"ImageNotPulled":   grave,
	"ProfileNotPulled": grave,
	"ImageRefused":     grave,
	"BerthStarted":     grave,
	"BerthStopped":     grave,
	"MachineShutDown":  grave,
	"EntriesLost":      grave,
	"HistoryUnread":    grave,
	"AttemptPanicked":  grave,
}

// plain are the marks of kinds of events that have the same mark in every context.
var plain = map[string]MarkKind{
	"SandboxNotMade":   NotMade,
	"ContainerNotMade": NotMade,
	"ImageNotPulled":   NotMade,
	"ProfileNotPulled": NotMade,
	"ImageRefused":     NotMade,
	"OOMKillSurvived":  OOMSurvived,
	"ShimDied":         ShimLost,
	"AccessBegan":      Exec,
	"ContainerdLost":   ContainerdOut,
	"ContainerdAbsent": ContainerdOut,
	"EntriesLost":      HistoryGap,
	"HistoryUnread":    HistoryGap,
}

func weightOf(n entry) weight {
	w := weights[n.kind]
	if w < notable && n.line.Err != "" {
		w = notable
	}
	return w
}

// exitKind returns the mark of an end. stopped is set if a stop was requested before.
func exitKind(e event.Exit, stopped bool) MarkKind {
	switch {
	case e.OOM:
		return ExitOOM
	case !e.Measured && e.Witness != exit.Start:
		return ExitUnknown
	case e.Measured && e.Code == 0:
		return ExitCompleted
	case stopped:
		return ExitStopped
	}
	return ExitError
}

func exitText(e event.Exit, kind MarkKind) string {
	text := fmt.Sprintf("ended with code %d, %s", e.Code, e.Reason)
	if kind == ExitUnknown {
		text = "ended with a code that nobody knows"
	}
	if kind == ExitStopped {
		text += ", after a stop was asked for"
	}
	if e.OOM && e.Limit != "" {
		text += ": " + e.Limit.String()
	} else if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}
