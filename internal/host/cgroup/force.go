// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/host/pidfd"
)

// Force does all that can be done about a process p that was killed and has not ended. A process
// can keep p from its end by tracing it, and a frozen group does so with cgroup v1. So Force thaws
// the group dir and all groups below it, and sends SIGKILL to their processes. Then it kills all
// processes in the PID namespace of which p is the init process, in whichever group they are, and
// moves those that another group freezes out of that freezer. It waits for none of them. dir may be
// "".
//
// held describes the reason why p had not ended, as far as /proc shows it.
func Force(dir string, p pidfd.Process) (held string, err error) {
	held = heldBy(p.Pid)
	errs := []error{}
	for _, d := range everywhere(dir) {
		_, err := thawTree(d)
		errs = append(errs, err)
		_, err = killOnce(d)
		errs = append(errs, err)
	}
	pids, err := pidfd.KillNamespace(p)
	if errors.Is(err, pidfd.ErrGone) {
		return held, errors.Join(errs...)
	}
	errs = append(errs, err)
	for _, pid := range append(pids, int(p.Pid)) {
		errs = append(errs, leaveFrozen(pid))
	}
	if others := slices.DeleteFunc(pids, func(pid int) bool { return pid == int(p.Pid) }); len(others) > 0 && strings.Contains(held, waitsForOthers) {
		held += fmt.Sprintf(" for %d others, of which %s", len(others), heldBy(uint32(others[0])))
	}
	return held, errors.Join(errs...)
}

// waitsForOthers is the kernel function in which the init process of a PID namespace waits, at its
// end, until all other processes of the namespace have ended.
const waitsForOthers = "zap_pid_ns_processes"

// heldBy describes why a killed process has not ended, and names the group that freezes it.
func heldBy(pid uint32) string {
	h, err := pidfd.HeldBy(pid)
	if err != nil {
		return err.Error()
	}
	if dir, frozen := frozenIn(int(pid)); frozen {
		return h.String() + ", and is frozen by cgroup " + dir
	}
	return h.String()
}

// everywhere returns the directories of a group: one for each hierarchy, because the processes of a
// container can leave a group in one of them and stay in the others.
func everywhere(dir string) []string {
	if dir == "" {
		return nil
	}
	path, ok := within(dir)
	if !ok {
		return []string{dir}
	}
	hierarchies, _ := filepath.Glob(mount + "/*/cgroup.procs") // the pattern is not malformed
	dirs := []string{dir}
	for _, h := range hierarchies {
		d := filepath.Join(filepath.Dir(h), path)
		if _, err := os.Stat(d); err == nil && d != dir {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// within returns the path of a group within its hierarchy, with cgroup v1.
func within(dir string) (path string, ok bool) {
	below, ok := strings.CutPrefix(dir, mount+"/")
	if V2() || !ok {
		return "", false
	}
	_, path, _ = strings.Cut(below, "/")
	return path, path != ""
}

// letEnd thaws a cgroup v1 group whose processes were killed.
func letEnd(dir string) error {
	path, ok := within(dir)
	if !ok {
		return nil
	}
	_, err := thawTree(filepath.Join(freezer, path))
	errs := []error{err}
	dirs, err := tree(dir)
	errs = append(errs, err)
	for _, d := range dirs {
		pids, err := Procs(d)
		errs = append(errs, err)
		for _, pid := range pids {
			errs = append(errs, leaveFrozen(pid))
		}
	}
	return errors.Join(errs...)
}

// frozenIn returns the group that freezes a process. With cgroup v2 a process that is frozen ends
// all the same once it is killed.
func frozenIn(pid int) (dir string, frozen bool) {
	if V2() {
		return "", false
	}
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !slices.Contains(strings.Split(f[1], ","), "freezer") {
			continue
		}
		dir = filepath.Join(freezer, filepath.Clean("/"+f[2]))
		state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return dir, err == nil && strings.TrimSpace(string(state)) != "THAWED"
	}
	return "", false
}

// FrozenBy returns the group in which a process is frozen, by that group or by one above it; "" if
// it is not, or if that cannot be told now.
func FrozenBy(pid int) string {
	if dir, frozen := frozenIn(pid); frozen {
		return dir
	}
	unified := mount
	if !V2() {
		unified = filepath.Join(mount, "unified")
	}
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		dir := filepath.Join(unified, filepath.Clean("/"+path))
		events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if err == nil && slices.Contains(strings.Split(string(events), "\n"), "frozen 1") {
			return dir
		}
	}
	return ""
}

// leaveFrozen moves a killed process that a group still freezes to the root group of the freezer,
// which is never frozen. The process then ends, and the other processes of its group stay frozen.
// It addresses the process by pid. That is safe: the process cannot end while it is frozen, and if
// the pid was reused, the other process merely leaves a freezer.
func leaveFrozen(pid int) error {
	dir, frozen := frozenIn(pid)
	if !frozen {
		return nil
	}
	err := os.WriteFile(filepath.Join(freezer, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("take process %d out of the frozen cgroup %s: %w", pid, dir, err)
	}
	return nil
}
