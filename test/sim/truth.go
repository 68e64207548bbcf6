// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/world"
)

// truthLocked compares a status with the truth.
func (v *Watch) truthLocked(st *runtimeapi.ContainerStatus, final bool) {
	id, code, reason := st.GetId(), uint32(st.GetExitCode()), st.GetReason()
	p := v.w.Process(id)
	switch {
	case st.GetState() != exited:
		if final && p != nil && p.Ended && p.Started {
			v.problemLocked("%s has ended with %d and is %s", world.Short(id), p.Code, st.GetState())
		}
		if final && p != nil && p.Asked && !p.Ended && st.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			v.problemLocked("%s was asked to end, and runs on", world.Short(id))
		}
	case p == nil:
		// Whether a restore ran is known to its shim alone.
		if reason != "StartError" && (reason != "Unknown" || !v.w.Unrestored(id)) {
			v.problemLocked("%s never had a process, and ended with %d %s", world.Short(id), code, reason)
		}
	case !p.Ended && p.Started:
		v.problemLocked("%s is EXITED with %d %s, and its process lives", world.Short(id), code, reason)
	case reason == "StartError" || !p.Ended:
		// The process of a failed start is ended by SIGKILL, before its program has run.
		if reason != "StartError" || p.Started {
			v.problemLocked("%s ran its program and ended with %d, and is reported with %d %s", world.Short(id), p.Code, code, reason)
		}
	case reason == "Unknown" && code == 255:
		// A process that never ran the user's program has no code that anybody would want to know.
		if final && p.Started && !unknowable(p, v.w.Exact) {
			v.problemLocked("%s ended with %d, which could be known and is Unknown", world.Short(id), p.Code)
		}
	case !p.Started && p.Killed && !p.Unanswered: // its shim knew that berth was to blame
		v.problemLocked("%s never ran its program, and ended with %d %s", world.Short(id), code, reason)
	case code != p.Code && (!final || p.Lost) && firstThread(p, code):
		// It is corrected by its shim, if that lives.
	case code != p.Code:
		v.problemLocked("%s ended with %d and is reported with %d %s", world.Short(id), p.Code, code, reason)
	default:
		v.momentLocked(st, p, final)
	}
}

// firstThread reports whether a code is the one of p's first thread, and not of p.
func firstThread(p *world.Process, code uint32) bool {
	return p != nil && p.FirstThread != nil && *p.FirstThread == code && p.Code != code
}

// unknowable reports whether the code of p cannot be known: its shim's is lost, there is no pidfd
// of it, and no berth that the kernel notified could record it.
func unknowable(p *world.Process, exact bool) bool {
	return p.Lost && (!exact || p.Blind || !p.Kept && !p.Notified)
}

// momentLocked checks when and why a process ended whose code is known.
func (v *Watch) momentLocked(st *runtimeapi.ContainerStatus, p *world.Process, final bool) {
	at := v.w.Wall(p.At)
	want := max(at.UnixNano(), st.GetStartedAt())
	off := time.Duration(st.GetFinishedAt() - want).Abs()
	// A shim stamps what the clock shows: that is as right as the clock is, and nothing else is known
	// of an end that the kernel has not told.
	known := p.Notified || p.Away && !p.Lost && !p.Unanswered && p.Stamp.Equal(at)
	if known && !final && v.w.ClockSets() > 0 {
		known = false // an event has wall time as it was known when it was published
	}
	if off > time.Millisecond && !v.guessed[p.ID] && known && v.w.Exact {
		v.problemLocked("%s ended at %s and is reported at %s", world.Short(p.ID),
			at.Format(time.RFC3339Nano), time.Unix(0, st.GetFinishedAt()).Format(time.RFC3339Nano))
	}
	// A kill long before does not explain an end. A kill while no berth could note the instant
	// explains only that the program itself was killed.
	oom := p.OOM > 0 && p.At.Sub(p.OOMAt) <= time.Second && p.Code != 0
	if st.GetReason() == "OOMKilled" && (!oom || p.Killed) {
		v.problemLocked("%s is OOMKilled, and was not", world.Short(p.ID))
	}
	if oom && !p.Asked && !p.Lost && !p.VM && !p.Uncounted && (p.Code == 137 || p.Notified) && st.GetReason() != "OOMKilled" {
		v.problemLocked("%s was ended by the OOM killer and is %s", world.Short(p.ID), st.GetReason())
	}
}

// expectMemory compares the memory limit that the status of a container reports with the one that
// its process has, and both with want.
func (s *Story) expectMemory(name string, want int64) error {
	st, err := s.Status(name)
	if err != nil {
		return err
	}
	has, err := s.World.Memory(s.ID(name))
	if err != nil {
		return err
	}
	if got := st.GetResources().GetLinux().GetMemoryLimitInBytes(); got != want || has != want {
		return fmt.Errorf("its status reports a memory limit of %d, and it has %d", got, has)
	}
	return nil
}
