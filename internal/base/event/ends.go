// SPDX-License-Identifier: Apache-2.0

package event

import (
	"log/slog"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
)

// Exit describes the end of a process.
type Exit struct {
	Code     uint32      `json:"code"`
	Measured bool        `json:"measured"` // if false, the code is 255
	Reason   string      `json:"reason"`
	Witness  exit.Origin `json:"witness"`
	// FirstThread is set if the code is that of the first thread of the process: see [exit.Fact].
	FirstThread bool          `json:"firstThread,omitempty"`
	Ended       clock.Instant `json:"ended,omitzero"` // the instant, as far as the witness knows
	OOM         bool          `json:"oom,omitempty"`
	Limit       exit.Limit    `json:"limit,omitempty"`  // of an OOM kill: the one that was reached
	Detail      string        `json:"detail,omitempty"` // a sentence for a person
}

// ExitOf converts a fact.
func ExitOf(f exit.Fact) Exit {
	return Exit{
		Code:        f.ExitCode(),
		Measured:    f.Measured,
		Reason:      f.Reason(),
		Witness:     f.Origin,
		FirstThread: f.FirstThread,
		Ended:       f.At,
		OOM:         f.OOM,
		Limit:       f.Limit,
		Detail:      f.Detail(),
	}
}

// actor returns who spoke for the witness.
func (e Exit) actor() Actor {
	switch e.Witness {
	case exit.Kernel:
		return Kernel
	case exit.Task, exit.Stream:
		return Containerd
	case exit.Audit, exit.Start:
	}
	return Berth
}

func (e Exit) attrs() []slog.Attr {
	code := slog.Uint64("code", uint64(e.Code))
	if !e.Measured {
		code = slog.String("code", "unknown")
	}
	return []slog.Attr{code, slog.String("witness", string(e.Witness))}
}

// Said is one witness's report of an end.
type Said struct {
	At       clock.Instant `json:"at"` // when berth took it
	Witness  exit.Origin   `json:"witness"`
	Code     uint32        `json:"code"`
	Measured bool          `json:"measured"`
	// FirstThread is as in Exit.
	FirstThread bool          `json:"firstThread,omitempty"`
	Ended       clock.Instant `json:"ended,omitzero"` // the instant, as far as the witness knows
	// Hint is set if the kernel watches the process, so that only the code of this report counts.
	Hint bool `json:"hint,omitempty"`
}

// Evidence holds the facts that an exit was settled from: enough to come to the same verdict again.
type Evidence struct {
	// Said holds the reports of the witnesses, in the order in which they were taken. Of very many
	// only the first are kept.
	Said []Said `json:"said,omitempty"`
	// Kills counts the SIGKILLs of berth's own that were delivered, and Stops the stop signals.
	Kills int `json:"kills,omitempty"`
	Stops int `json:"stops,omitempty"`
	// GivenUp is set if the start was given up.
	GivenUp bool `json:"givenUp,omitempty"`
	// OOMKills counts the OOM kills in the container's cgroup, as far as they are known. The last one
	// was between two instants, and Limit is the one that was reached.
	OOMKills uint64        `json:"oomKills,omitempty"`
	OOMFrom  clock.Instant `json:"oomFrom,omitzero"`
	OOMTo    clock.Instant `json:"oomTo,omitzero"`
	OOMLimit exit.Limit    `json:"oomLimit,omitempty"`
}

// ExitReported reports that a witness saw the process end.
type ExitReported struct {
	Exit
}

func (e ExitReported) line() Line { return step(e.actor(), "exit reported", e.attrs()...) }

// ExitDoubted reports an end that a witness reported and that does not count, because the kernel
// does not confirm it.
type ExitDoubted struct {
	Exit
	// Process is the kernel's answer about the process.
	Process string `json:"process"`
}

func (e ExitDoubted) line() Line {
	return info(e.actor(), "exit doubted, the kernel does not confirm it", append(e.attrs(), slog.String("process", e.Process))...)
}

// ExitFound reports that the audit found a process gone whose end no witness had reported.
type ExitFound struct{}

func (ExitFound) line() Line { return info(Berth, "exit found by the audit, no witness reported it") }

// ExitSettled reports that an exit is durable and visible.
type ExitSettled struct {
	Exit
	// Lag is the time from the end of the process until then.
	Lag time.Duration `json:"lag"`
	// Evidence is not in the line.
	Evidence Evidence `json:"evidence,omitzero"`
}

func (e ExitSettled) line() Line {
	return info(Berth, "exit settled",
		slog.Uint64("code", uint64(e.Code)), slog.String("reason", e.Reason), slog.String("witness", string(e.Witness)))
}

// ExitCorrected reports that a code was measured after the exit was settled without one, or with
// that of the first thread alone.
type ExitCorrected struct {
	Exit
	// Evidence is not in the line.
	Evidence Evidence `json:"evidence,omitzero"`
}

func (e ExitCorrected) line() Line {
	return info(e.actor(), "exit code corrected", append(e.attrs(), slog.String("reason", e.Reason))...)
}

// FirstThreadDiffers reports that the kernel gave a pidfd another code of an end, that of the first
// thread of the process, than it gave the parent, which is the shim.
type FirstThreadDiffers struct {
	Code    uint32      `json:"code"`
	Witness exit.Origin `json:"witness"`
	First   uint32      `json:"first"` // does not stand
}

func (e FirstThreadDiffers) line() Line {
	return info(Kernel, "exit code of the process is not that of its first thread",
		slog.Uint64("code", uint64(e.Code)), slog.String("witness", string(e.Witness)), slog.Uint64("first", uint64(e.First)))
}

// CodesDiffer reports that two witnesses have measured different codes of one end, and that it is
// not a difference that the kernel makes: one of them is wrong.
type CodesDiffer struct {
	Code         uint32      `json:"code"` // stands
	Witness      exit.Origin `json:"witness"`
	Other        uint32      `json:"other"` // does not
	OtherWitness exit.Origin `json:"otherWitness"`
}

func (e CodesDiffer) line() Line {
	return warn(Berth, "exit codes differ, a witness is wrong", "",
		slog.Uint64("code", uint64(e.Code)), slog.String("witness", string(e.Witness)),
		slog.Uint64("other", uint64(e.Other)), slog.String("other_witness", string(e.OtherWitness)))
}

// CodeUnconfirmed reports that an exit is settled with the code of the first thread of a process
// whose namespace can be rebooted, because the shim did not report the code of the process in time.
type CodeUnconfirmed struct {
	Code uint32 `json:"code"`
}

func (e CodeUnconfirmed) line() Line {
	return warn(Kernel, "exit code is that of the first thread, the shim did not confirm it in time", "", slog.Uint64("code", uint64(e.Code)))
}

// ProcessUnanswered reports that the kernel could not be asked whether the process lives.
type ProcessUnanswered struct {
	Err string `json:"err"`
}

func (e ProcessUnanswered) line() Line {
	return warn(Kernel, "process unknown, the kernel cannot be asked", e.Err)
}

// ShimDied reports that the process was killed, and that the shim of its pod had died. The clean-up
// after a shim kills the rest of it, so that is the cause.
type ShimDied struct{}

func (ShimDied) line() Line {
	return warn(Kernel, "shim of the pod had died, its processes were killed", "")
}

// CgroupUnread reports that the cgroup of a process is not known for certain.
type CgroupUnread struct {
	Err string `json:"err"`
}

func (e CgroupUnread) line() Line {
	return warn(Kernel, "cgroup not read, it is taken for the one that the runtime was asked for", e.Err)
}

// KillFailed reports that a process of an object to be removed still runs. The audit tries again.
type KillFailed struct {
	Err string `json:"err"`
}

func (e KillFailed) line() Line {
	return warn(Berth, "process not killed, its stop or removal waits", e.Err)
}

// EndHeld reports that a process that was killed has not ended, and the reaction: its group is
// thawed, and all processes that could keep it from ending are killed.
type EndHeld struct {
	// By is the reason why it has not ended, as far as it is known.
	By string `json:"by"`
	// Since is how long ago it was killed.
	Since time.Duration `json:"since"`
	Err   string        `json:"err,omitempty"` // of the reaction
}

func (e EndHeld) line() Line {
	return warn(Kernel, "process not ended by SIGKILL, all of its group is thawed and killed", e.Err, slog.String("by", e.By))
}

// LeftoversRemain reports that an exit is settled while processes that init left behind live on.
type LeftoversRemain struct {
	Err string `json:"err"`
}

func (e LeftoversRemain) line() Line {
	return warn(Kernel, "processes remain after the end of the container's init", e.Err)
}

// LeftoversNotKilled reports that a release goes on to the deletion of the task all the same.
type LeftoversNotKilled struct {
	Err string `json:"err"`
}

func (e LeftoversNotKilled) line() Line { return warn(Berth, "leftover processes not killed", e.Err) }

// ReleasedAroundShim reports that an object was removed without its shim, which hangs or cannot.
type ReleasedAroundShim struct {
	Shim string `json:"shim"`
	Err  string `json:"err"`
}

func (e ReleasedAroundShim) line() Line {
	return warn(Berth, "object removed without its shim", e.Err, slog.String("shim", e.Shim))
}

// PluginsNotNotified reports that no hook is called for an end, because those before hang.
type PluginsNotNotified struct {
	// Waiting is for how many ends hooks have not answered.
	Waiting int `json:"waiting"`
}

func (e PluginsNotNotified) line() Line {
	return warn(Berth, "plug-ins not notified of the end, they have not answered for others", "", slog.Int("waiting", e.Waiting))
}

// OOMKillSurvived reports that the OOM killer fired in the cgroup of a container that goes on.
type OOMKillSurvived struct {
	Kills uint64     `json:"kills"`
	Limit exit.Limit `json:"limit,omitempty"` // the one that was reached
}

func (e OOMKillSurvived) line() Line {
	return info(Kernel, "OOM kill survived by the container", slog.Uint64("kills", e.Kills), slog.String("because", e.Limit.String()))
}

// OOMKillReported reports that containerd reports an OOM kill.
type OOMKillReported struct{}

func (OOMKillReported) line() Line { return info(Containerd, "OOM kill reported by containerd") }

// OOMNotWatched reports that OOM kills are counted when the container ends, and not before.
type OOMNotWatched struct {
	Err string `json:"err"`
}

func (e OOMNotWatched) line() Line {
	return warn(Kernel, "OOM kills of the container not watched, they are counted when it ends", e.Err)
}

// OOMCounterUnread reports that the counter of OOM kills could not be read in time.
type OOMCounterUnread struct {
	Err string `json:"err"`
}

func (e OOMCounterUnread) line() Line {
	return warn(Kernel, "counter of OOM kills not read, using containerd's report", e.Err)
}

// OOMCounterGone reports that the counter of OOM kills vanished before it was read.
type OOMCounterGone struct {
	Err string `json:"err"`
}

func (e OOMCounterGone) line() Line {
	return warn(Kernel, "counter of OOM kills vanished with its cgroup, using containerd's report", e.Err)
}

// OOMKillOfPod reports that the counter vanished, and that the pod's counter has a kill that is in
// no other container.
type OOMKillOfPod struct{}

func (OOMKillOfPod) line() Line {
	return info(Kernel, "OOM kill counted by the pod's cgroup, the container's vanished")
}
