// SPDX-License-Identifier: Apache-2.0

package event

import "log/slog"

// OutputUnread reports that the output of a container waits in its pipes.
type OutputUnread struct {
	Err string `json:"err"`
}

func (e OutputUnread) line() Line { return warn(Berth, "output cannot be read for now", e.Err) }

// OutputHeld reports that output of a container waits because its log cannot be written.
type OutputHeld struct {
	Stream string `json:"stream"`
	Err    string `json:"err"`
}

func (e OutputHeld) line() Line {
	return warn(Berth, "output cannot be logged, and waits", e.Err, slog.String("stream", e.Stream))
}

// OutputResumed reports that the log takes output again.
type OutputResumed struct {
	Stream string `json:"stream"`
}

func (e OutputResumed) line() Line {
	return info(Berth, "output can be logged again", slog.String("stream", e.Stream))
}

// OutputEndUnrecorded reports that the next berth has to find the end of the output once more.
type OutputEndUnrecorded struct {
	Stream string `json:"stream"`
	Err    string `json:"err"`
}

func (e OutputEndUnrecorded) line() Line {
	return warn(Berth, "end of the output not recorded", e.Err, slog.String("stream", e.Stream))
}

// OutputMayMiss reports that a container ended while berth was away. The kernel drops the content
// of a FIFO that no process holds open.
type OutputMayMiss struct {
	Stream string `json:"stream"`
}

func (e OutputMayMiss) line() Line {
	return warn(Kernel, "end of the output may be missing: the container ended while berth was away", "",
		slog.String("stream", e.Stream))
}

// LoggerKilled reports that output written while berth was away is lost.
type LoggerKilled struct{}

func (LoggerKilled) line() Line {
	return warn(Berth, "berth-logger was killed: output written while berth was away is lost", "")
}

// LoggerReplaced reports that berth-logger was killed, and that another one keeps the pipes.
// Nothing is lost.
type LoggerReplaced struct{}

func (LoggerReplaced) line() Line {
	return warn(Berth, "berth-logger was killed, and another one has taken its place", "")
}

// LoggerReplacedLate reports the same of a berth-logger that was killed while berth was away. Until
// now, writes of the container failed, or ended it by SIGPIPE.
type LoggerReplacedLate struct{}

func (LoggerReplacedLate) line() Line {
	return warn(Berth, "berth-logger was killed while berth was away: until now, writes of the container failed or ended it by SIGPIPE", "")
}

// LoggerNotReplaced reports that berth-logger was killed, and that another one cannot be started
// yet. If berth is stopped meanwhile, writes of the container fail.
type LoggerNotReplaced struct {
	Err string `json:"err"`
}

func (e LoggerNotReplaced) line() Line {
	return warn(Berth, "berth-logger was killed and another one cannot be started yet: while berth is stopped, writes of the container would fail", e.Err)
}

// LoggerSilent reports that berth-logger does not hand over the pipes that it keeps.
type LoggerSilent struct {
	Err string `json:"err"`
}

func (e LoggerSilent) line() Line {
	return warn(Berth, "berth-logger does not hand over the container's output, which waits", e.Err)
}

// LogTruncated reports that another process has truncated the log of a container. Further output
// goes to its new end.
type LogTruncated struct {
	From int64 `json:"from"` // in bytes
	To   int64 `json:"to"`
}

func (e LogTruncated) line() Line {
	return warn(Berth, "log truncated by another process; output goes on at its end", "",
		slog.Int64("from", e.From), slog.Int64("to", e.To))
}

// LogDeleted reports that another process has deleted the log of a container, and that berth has
// made it anew.
type LogDeleted struct{}

func (LogDeleted) line() Line {
	return warn(Berth, "log deleted by another process; output goes on in a new one", "")
}

// LogDraining reports that an exit is settled while output of the container is not in its log yet.
type LogDraining struct {
	Err string `json:"err"`
}

func (e LogDraining) line() Line { return warn(Berth, "log still draining", e.Err) }

// LogNotDrained reports that output is dropped because the container is removed.
type LogNotDrained struct {
	Err string `json:"err"`
}

func (e LogNotDrained) line() Line { return warn(Berth, "log not drained to its end", e.Err) }

// LogPumpEnded reports that the output of a container is not copied any more.
type LogPumpEnded struct {
	Err string `json:"err"`
}

func (e LogPumpEnded) line() Line { return warn(Berth, "log pump ended", e.Err) }
