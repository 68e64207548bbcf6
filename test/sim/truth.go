// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// truthLocked compares a status with what really happened.
func (v *Watch) truthLocked(st *runtimeapi.ContainerStatus, final bool) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	id, code, reason := st.GetId(), uint32(st.GetExitCode()), st.GetReason() //nolint:gosec // 0..255
	p := v.w.inits[id]
	switch {
	case st.GetState() != exited:
		if final && p != nil && p.ended && p.started {
			v.problemLocked("%s has ended with %d and is %s", short(id), p.code, st.GetState())
		}
	case p == nil:
		if reason != "StartError" {
			v.problemLocked("%s never had a process, and ended with %d %s", short(id), code, reason)
		}
	case !p.ended && p.started:
		v.problemLocked("%s is EXITED with %d %s, and its process lives", short(id), code, reason)
	case reason == "StartError" || !p.ended:
		// What was made for a start that failed is ended by SIGKILL. If the process ended by a
		// SIGKILL of somebody else's, berth cannot see the difference.
		if reason != "StartError" || p.started && !p.killed && p.code != 137 {
			v.problemLocked("%s was started and ended by itself with %d: that is not a StartError", short(id), p.code)
		}
	case reason == "Unknown" && code == 255:
		// A process that never ran the user's program has no code that anybody would want to know.
		if final && p.started && !v.w.unknowable(p) {
			v.problemLocked("%s ended with %d, which could be known and is Unknown", short(id), p.code)
		}
	case code != p.code:
		v.problemLocked("%s ended with %d and is reported with %d %s", short(id), p.code, code, reason)
	default:
		v.momentLocked(st, p)
	}
}

// momentLocked checks when and why a process ended whose code is known.
func (v *Watch) momentLocked(st *runtimeapi.ContainerStatus, p *process) {
	want := max(p.at.UnixNano(), st.GetStartedAt())
	off := time.Duration(st.GetFinishedAt() - want).Abs()
	known := v.w.notified(p) || p.away && !p.lost && !p.unanswered
	if off > time.Millisecond && !v.guessed[p.id] && known && v.w.Exact {
		v.problemLocked("%s ended at %s and is reported at %s", short(p.id),
			p.at.Format(time.RFC3339Nano), time.Unix(0, st.GetFinishedAt()).Format(time.RFC3339Nano))
	}
	oom := p.oom > 0 && p.code != 0
	if st.GetReason() == "OOMKilled" && (!oom || p.killed) {
		v.problemLocked("%s is OOMKilled, and was not", short(p.id))
	}
	if oom && !p.asked && !p.lost && !p.vm && st.GetReason() != "OOMKilled" {
		v.problemLocked("%s was ended by the OOM killer and is %s", short(p.id), st.GetReason())
	}
}

// unknowable reports whether nobody can know the code of p: its shim's is lost, nobody kept a pidfd
// of it, and no berth that the kernel notified could record it.
func (w *World) unknowable(p *process) bool {
	return p.lost && (!w.Exact || !p.kept && !w.notified(p))
}

// notified reports whether the kernel notified a berth that lives, or could record it.
func (w *World) notified(p *process) bool {
	return p.watcher != nil && (!p.watcher.dead() || p.recorded)
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

// Memory is the memory limit of a process that runs; 0 for none.
func (w *World) Memory(id string) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.inits[id]
	if p == nil || p.ended {
		return 0, fmt.Errorf("%s does not run", short(id))
	}
	if p.memory != 0 {
		return p.memory, nil
	}
	var spec specs.Spec
	if err := typeurl.UnmarshalTo(p.spec, &spec); err != nil {
		return 0, err
	}
	if l := spec.Linux.Resources.Memory.Limit; l != nil {
		return *l, nil
	}
	return 0, nil
}
