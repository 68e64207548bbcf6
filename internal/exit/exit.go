// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"fmt"
	"time"
)

// CodeUnknown is reported for a process whose exit code nobody measured.
// The field's convention (containerd, CRI-O and the kubelet know it) is 255.
const CodeUnknown uint32 = 255

// CodeStartError is reported for a container whose process could not be started at all.
// The field's convention, next to the reason "StartError", is 128.
const CodeStartError uint32 = 128

// Origin names the witness that made a statement.
type Origin string

const (
	Kernel Origin = "kernel" // pidfd: the kernel itself
	Task   Origin = "task"   // containerd's answer to Wait or to a question about the task: the shim's wait4
	Stream Origin = "stream" // containerd's event stream: the shim's wait4, published
	Audit  Origin = "audit"  // a relist: the process or the task is gone
	Start  Origin = "start"  // the start itself failed: there never was a process of the user's
)

// Reasons as the kubelet and its users know them.
const (
	ReasonCompleted  = "Completed"
	ReasonError      = "Error"
	ReasonOOMKilled  = "OOMKilled"
	ReasonStartError = "StartError"
	ReasonUnknown    = "Unknown"
)

// Fact is one witness's statement that the init process of ID ended.
type Fact struct {
	// ID is the container or pod sandbox.
	ID string `json:"id"`
	// Code is the exit code: 0..255, and 128+N for a process ended by signal N.
	// It means something only when Measured.
	Code uint32 `json:"code"`
	// Measured says that the kernel or the process's parent (the shim) reported Code.
	Measured bool `json:"measured"`
	// At is when the process ended, as well as the witness knows. Zero: the witness cannot tell.
	At time.Time `json:"at,omitzero"`
	// Origin is the witness whose code stands.
	Origin Origin `json:"origin"`
	// OOM says that the kernel killed a process of the container for want of memory: why it ended, if it did
	// not end well.
	OOM bool `json:"oom,omitempty"`
	// Message is for a person: the error of a start, or why a code is unknown.
	Message string `json:"message,omitempty"`
}

// Zero reports whether nothing is known yet.
func (f Fact) Zero() bool { return f.Origin == "" }

// NotStarted is the fact that the program of id never ran: why says what kept it. It counts as measured, as the start itself
// knows; what the process that was made for it ends with afterwards does not replace it.
func NotStarted(id string, at time.Time, why string) Fact {
	return Fact{ID: id, Code: CodeStartError, Measured: true, At: at, Origin: Start, Message: why}
}

// ExitCode is the code to report: the measured one, or [CodeUnknown].
func (f Fact) ExitCode() uint32 {
	if !f.Measured {
		return CodeUnknown
	}
	return f.Code
}

// Signal is the signal that ended the process, or 0.
func (f Fact) Signal() int {
	if f.Measured && f.Code > 128 && f.Code < 128+65 {
		return int(f.Code - 128)
	}
	return 0
}

// Reason is the one-word reason that CRI reports for the exit.
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

// Detail is the sentence that goes with Reason; empty when there is nothing to add.
func (f Fact) Detail() string {
	if f.Message != "" || f.Measured || f.Zero() {
		return f.Message
	}
	s := fmt.Sprintf("the process ended, but neither the kernel nor the shim could say with which code (told by %s)", f.Origin)
	if f.OOM {
		s += "; the kernel had killed in the container for want of memory"
	}
	return s
}

// String is the fact in one line, for logs and timelines.
func (f Fact) String() string {
	if f.Zero() {
		return "no exit"
	}
	code := "unknown code"
	if f.Measured {
		code = fmt.Sprintf("code %d", f.Code)
	}
	s := fmt.Sprintf("%s ended, %s, seen by %s", f.ID, code, f.Origin)
	if f.OOM {
		s += ", OOM"
	}
	return s
}

// Merge returns what is known after next was heard while have was known, and whether that
// is more than have said. It is idempotent, and the order in which witnesses speak changes
// neither whether a measured code is reported nor, among equals, who was first:
//
//   - nothing known: next is what is known;
//   - have is measured: it stands, whatever next says;
//   - have is a guess, next is measured: next's code and origin, have's instant;
//   - both are guesses: have stands, an instant it lacked is filled in.
//
// An OOM verdict, once given, stays: it is read from the container's cgroup, not told by
// a witness. Facts of different IDs never merge: have is returned unchanged.
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
	merged.OOM = have.OOM || next.OOM
	if !have.Measured && next.Measured {
		merged.Code, merged.Measured, merged.Origin, merged.Message = next.Code, true, next.Origin, next.Message
	}
	return merged, merged != have
}
