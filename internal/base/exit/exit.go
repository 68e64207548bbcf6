// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"fmt"

	"berth/internal/base/clock"
)

// CodeUnknown is reported for a process whose exit code was not measured. 255 is the convention of
// containerd and CRI-O.
const CodeUnknown uint32 = 255

// CodeStartError is reported for a container whose process could not be started. 128 is the
// convention of containerd, next to the reason "StartError".
const CodeStartError uint32 = 128

// Origin names the witness that made a statement.
type Origin string

// The witnesses.
const (
	Kernel Origin = "kernel" // the kernel, by a pidfd
	Task   Origin = "task"   // containerd's answer about the task: the result of the shim's wait4
	Stream Origin = "stream" // containerd's event stream: the same, published
	Audit  Origin = "audit"  // the audit: the process or the task is gone
	Start  Origin = "start"  // the start, which failed: the user's program never ran
)

// Reasons as the kubelet and its users know them.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonOOMKilled  = "OOMKilled"
	ReasonStartError = "StartError"
	ReasonUnknown    = "Unknown"
)

// Fact is the statement of a witness that the init process of ID ended.
type Fact struct {
	// ID is the container or pod sandbox.
	ID string `json:"id"`
	// Pid is the process that the witness saw end. 0: the witness does not know which it was. An ID
	// has more than one process in turn where a start was undone. It is not on record.
	Pid uint32 `json:"-"`
	// Code is the exit code: 0 to 255, with 128+N for a process that signal N ended. It has a
	// meaning only when Measured is set.
	Code uint32 `json:"code"`
	// Measured is set if the kernel or the process's parent (the shim) reported Code.
	Measured bool `json:"measured"`
	// FirstThread is set if Code is that of the first thread of the process, and not yet confirmed
	// as that of the process. A pidfd has no other code once the process was reaped. The two differ
	// where another thread, or reboot(2), decided how the process ends: see package pidfd.
	FirstThread bool `json:"firstThread,omitempty"`
	// At is when the process ended, as well as the witness knows. Zero: the witness does not know.
	At clock.Instant `json:"at,omitzero"`
	// Origin is the witness whose code stands.
	Origin Origin `json:"origin"`
	// OOM is set if the OOM killer fired in the container's cgroup when it ended. It is the reason
	// for the exit unless Code is 0.
	OOM bool `json:"oom,omitempty"`
	// Limit is the memory limit that made the OOM killer fire.
	Limit Limit `json:"limit,omitempty"`
	// Message is for a person: the error of a start, or why a code is unknown.
	Message string `json:"message,omitempty"`
}

// Limit names a memory limit.
type Limit string

// The memory limits that can make the OOM killer fire in a container.
const (
	LimitUnknown   Limit = ""
	LimitContainer Limit = "container" // its own
	LimitPod       Limit = "pod"       // its pod's
	LimitAbove     Limit = "above"     // the limit of a cgroup above the pod's
	LimitNode      Limit = "node"      // none: the node ran out of memory
)

// String returns a clause for a person, or "" for an unknown limit.
func (l Limit) String() string {
	switch l {
	case LimitContainer:
		return "the container reached its memory limit"
	case LimitPod:
		return "the pod reached its memory limit"
	case LimitAbove:
		return "a cgroup above the pod reached its memory limit"
	case LimitNode:
		return "no memory limit of the container or the pod was reached: the node ran out of memory"
	case LimitUnknown:
	}
	return ""
}

// Rank is how trustworthy a code is. A witness of a higher rank is believed against one of a lower
// rank, in any order.
type Rank int

// The ranks.
const (
	Guess     Rank = iota // the code was not measured
	OfThread              // the first thread of the process ended with it
	OfProcess             // the code of the process, which its parent gets
)

// Rank returns how far the code is to be believed.
func (f Fact) Rank() Rank {
	switch {
	case !f.Measured:
		return Guess
	case f.FirstThread:
		return OfThread
	}
	return OfProcess
}

// Contradicts reports whether f and g are measured codes of one end that differ. The result of a
// failed start is not the code of a process.
func (f Fact) Contradicts(g Fact) bool {
	return f.Measured && g.Measured && f.Code != g.Code && f.ID == g.ID && f.Origin != Start && g.Origin != Start
}

// Zero reports whether nothing is known yet.
func (f Fact) Zero() bool { return f.Origin == "" }

// NotStarted returns the fact that the program of id never ran, because of why. It counts as
// measured, because the start knows it for certain: the code with which the process ends afterwards
// that was made for the start does not replace it.
func NotStarted(id string, at clock.Instant, why string) Fact {
	return Fact{
		ID:       id,
		Code:     CodeStartError,
		Measured: true,
		At:       at,
		Origin:   Start,
		Message:  why,
	}
}

// ExitCode returns the code to report: the measured one, or [CodeUnknown].
func (f Fact) ExitCode() uint32 {
	if !f.Measured {
		return CodeUnknown
	}
	return f.Code
}

// Signal returns the signal that ended the process, or 0.
func (f Fact) Signal() int {
	if f.Measured && f.Code > 128 && f.Code < 128+65 {
		return int(f.Code - 128)
	}
	return 0
}

// Reason returns the one-word reason that CRI reports for the exit.
func (f Fact) Reason() string {
	switch {
	case f.Origin == Start:
		return ReasonStartError
	case !f.Measured:
		return ReasonUnknown
	case f.Code == 0:
		return ReasonCompleted
	case f.OOM:
		return ReasonOOMKilled
	default:
		return ReasonError
	}
}

// Detail returns a sentence to go with Reason, or "" when there is nothing to add.
func (f Fact) Detail() string {
	if f.Message == "" && f.Reason() == ReasonOOMKilled && f.Limit != LimitUnknown {
		return "the OOM killer fired: " + f.Limit.String()
	}
	if f.Message != "" || f.Measured || f.Zero() {
		return f.Message
	}
	s := fmt.Sprintf("the process ended, but neither the kernel nor the shim could report its exit code (witness: %s)", f.Origin)
	if f.OOM {
		s += "; the OOM killer fired in the container's cgroup"
	}
	return s
}

// String returns the fact in one line.
func (f Fact) String() string {
	if f.Zero() {
		return "no exit"
	}
	code := "unknown code"
	if f.Measured {
		code = fmt.Sprintf("code %d", f.Code)
	}
	s := fmt.Sprintf("%s ended, %s, reported by %s", f.ID, code, f.Origin)
	if f.OOM {
		s += ", OOM"
	}
	return s
}

// Merge returns the fact that results from next while have is known, and whether it is better than
// have. It is idempotent, and the rank of the final fact does not depend on the order of the
// reports: it is the highest that was reported.
//
//   - have is zero: next stands;
//   - next has no higher rank than have, or is a start's and have is measured: have stands. So the
//     first measured code stands against all that are not better;
//   - next has a higher rank than have, which is measured, and the same code: have stands, with its
//     code confirmed as that of the process;
//   - next has a higher rank otherwise: the code, origin and message are those of next, the instant
//     is that of have.
//
// An instant that have lacks is taken from next, and OOM, once set, stays. Facts about different
// IDs do not merge: have is returned unchanged.
func Merge(have, next Fact) (Fact, bool) {
	switch {
	case next.Zero():
		return have, false
	case have.Zero():
		return next, true
	case have.ID != next.ID:
		return have, false
	}
	merged := have
	if merged.At.IsZero() {
		merged.At = next.At
	}
	if next.OOM && !have.OOM {
		merged.OOM, merged.Limit = true, next.Limit
	}
	switch {
	case next.Rank() <= have.Rank(), have.Measured && next.Origin == Start:
	case have.Measured && have.Code == next.Code:
		merged.FirstThread = false
	default:
		merged.Code, merged.Measured, merged.FirstThread = next.Code, true, next.FirstThread
		merged.Origin, merged.Message = next.Origin, next.Message
	}
	return merged, merged != have
}

// Amends reports whether f, which was merged into was, changes anything that is reported of an
// exit: that a witness has confirmed the code does not.
func (f Fact) Amends(was Fact) bool {
	was.FirstThread = f.FirstThread
	return f != was
}
