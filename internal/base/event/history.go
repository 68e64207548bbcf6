// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"time"

	"berth/internal/base/clock"
)

// ClockSet reports that the wall clock of the node was set: entries before it have stamps of
// another wall time, and are shown in that of now.
type ClockSet struct {
	// From and To are wall time, before and after.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Away is set if berth was not there, and has found it when it started.
	Away bool `json:"away,omitempty"`
}

func (e ClockSet) line() Line {
	attrs := []slog.Attr{
		slog.String("from", e.From.UTC().Format(time.RFC3339)),
		slog.String("to", e.To.UTC().Format(time.RFC3339)),
		slog.Duration("by", e.To.Sub(e.From).Round(time.Millisecond)),
	}
	if e.Away {
		attrs = append(attrs, slog.Bool("while_berth_was_away", true))
	}
	return info(Kernel, "the clock was set", attrs...)
}

// BerthStarted reports that berth began to serve this node.
type BerthStarted struct {
	Version string `json:"version"`
	// Boot is the kernel's ID of this boot.
	Boot string `json:"boot"`
	// After describes how the previous berth ended; "" if there was none.
	After string `json:"after,omitempty"`
}

// How the berth before may have ended.
const (
	AfterStop   = "a stop"
	AfterKill   = "a kill or a crash of berth"
	AfterReboot = "a reboot of the node"
	// AfterShutdown is a reboot before which berth ended the containers.
	AfterShutdown = "a shutdown of the node"
)

func (e BerthStarted) line() Line {
	attrs := []slog.Attr{slog.String("version", e.Version)}
	if e.After != "" {
		attrs = append(attrs, slog.String("after", e.After))
	}
	return info(Berth, "berth started", attrs...)
}

// BerthStopped reports that berth ended on request.
type BerthStopped struct{}

func (BerthStopped) line() Line { return info(Berth, "berth stopped") }

// MachineShutDown reports that the machine is being shut down, and that berth ends its containers.
type MachineShutDown struct {
	// Running is the number of containers that run.
	Running int `json:"running"`
}

func (e MachineShutDown) line() Line {
	return info(Berth, "the machine is being shut down, containers are ended in their grace periods", slog.Int("running", e.Running))
}

// Crash is one unrequested end of a container, with the observations about it.
type Crash struct {
	Exit
	Attempt uint32 `json:"attempt"` // the kubelet's
	// Log has the last lines that the container wrote, if they could be read.
	Log []string `json:"log,omitempty"`
	// Memory is the most that the container has used, in bytes, and CPU the processor time. They are 0
	// if they are not known.
	Memory uint64        `json:"memory,omitempty"`
	CPU    time.Duration `json:"cpu,omitempty"`
	// Beside is, of a container that the OOM killer ended, the one beside it in the pod that has used
	// most memory; zero if there is none or that is not known.
	Beside Use `json:"beside,omitzero"`
}

// Use is the resource use of a container of a pod.
type Use struct {
	Container string `json:"container"`
	Memory    uint64 `json:"memory"` // the most, in bytes
}

// ContainerCrashed reports that a container ended with an error without a request. It has the whole
// series: the ends of containers of this name since one of them ended well.
type ContainerCrashed struct {
	Names
	Count int   `json:"count"`
	First Crash `json:"first"`
	Last  Crash `json:"last"`
}

func (e ContainerCrashed) line() Line {
	attrs := []slog.Attr{
		slog.Uint64("code", uint64(e.Last.Code)),
		slog.String("reason", e.Last.Reason),
		slog.Int("crashes", e.Count),
		slog.Time("first", e.First.Ended.Stamp()),
	}
	if e.Last.Memory > 0 {
		attrs = append(attrs, slog.Uint64("memory", e.Last.Memory))
	}
	if e.Last.CPU > 0 {
		attrs = append(attrs, slog.Duration("cpu", e.Last.CPU))
	}
	if n := len(e.Last.Log); n > 0 {
		attrs = append(attrs, slog.String("wrote", e.Last.Log[n-1]))
	}
	return info(Berth, "container crashed", attrs...)
}

// ExitRecalled reports that the history lacks an exit that is on record. It was settled just before
// the power was cut, or by a berth that kept no history.
type ExitRecalled struct {
	Exit
}

func (e ExitRecalled) line() Line {
	return info(Berth, "exit taken from the record, the history lacks it",
		slog.Uint64("code", uint64(e.Code)),
		slog.String("reason", e.Reason),
		slog.Time("ended", e.Ended.Stamp()))
}

// EntriesLost reports that a part of the history was not kept.
type EntriesLost struct {
	Count int           `json:"count"`
	From  clock.Instant `json:"from"`
	To    clock.Instant `json:"to"`
	Err   string        `json:"err"`
}

func (e EntriesLost) line() Line {
	return warn(Berth, "entries of the history were lost", e.Err,
		slog.Int("count", e.Count),
		slog.Time("from", e.From.Stamp()),
		slog.Time("to", e.To.Stamp()))
}

// EntriesLeftOut reports that one sandbox or container had too many events to keep them all.
type EntriesLeftOut struct {
	Count int `json:"count"`
}

func (e EntriesLeftOut) line() Line {
	return info(Berth, "entries left out, there were too many", slog.Int("count", e.Count))
}

// HistoryUnread reports that a part of the history on the disk cannot be read.
type HistoryUnread struct {
	File string `json:"file"`
	Err  string `json:"err"`
}

func (e HistoryUnread) line() Line {
	return warn(Berth, "history cannot be read any further in a file", e.Err, slog.String("file", e.File))
}
