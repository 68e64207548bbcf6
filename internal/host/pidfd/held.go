// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Hold describes a thread that should have ended and has not.
type Hold struct {
	Thread  uint32 // its ID, which for the first thread of a process is the pid
	Command string
	State   string // as in proc_pid_status(5), such as "t (tracing stop)"
	// Tracer is the pid of the process that traces the thread, and may hold it at its exit
	// (PTRACE_O_TRACEEXIT in ptrace(2)), and TracedBy is that process's command. 0: none does.
	Tracer   uint32
	TracedBy string
	// Waits is the kernel function in which the thread sleeps; "" if it does not sleep, or if the
	// kernel does not show it.
	Waits string
	// Init is set if the process is the init process of a PID namespace: it ends after all others
	// in there.
	Init bool
}

// String describes the hold for a person.
func (h Hold) String() string {
	s := fmt.Sprintf("process %d (%q) is in state %s", h.Thread, h.Command, h.State) // it names itself
	if h.Tracer != 0 {
		s += fmt.Sprintf(", is traced by process %d (%q)", h.Tracer, h.TracedBy)
	}
	if h.Waits != "" {
		s += ", and waits in " + h.Waits
	}
	return s
}

// mostThreads bounds how many threads of a process are examined, because a program may have many
// more.
const mostThreads = 256

// HeldBy explains why the process with a pid has not ended: it returns the first of its remaining
// threads that is traced, or else the first one. It goes by the pid, so the caller must know that
// the process has not been reaped. It returns [ErrGone] if the process was reaped, or if no thread
// is left.
func HeldBy(pid uint32) (Hold, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	f, err := os.Open(dir)
	if err != nil {
		return Hold{}, unread(pid, err)
	}
	defer f.Close()
	threads, err := f.Readdirnames(mostThreads)
	if err != nil {
		return Hold{}, unread(pid, err)
	}
	var first *Hold
	for _, tid := range threads {
		b, err := os.ReadFile(dir + "/" + tid + "/status")
		if err != nil {
			continue // it has ended since
		}
		h, ok := holdOf(b)
		if !ok {
			continue
		}
		if first == nil || first.Tracer == 0 && h.Tracer != 0 {
			first = &h
		}
	}
	if first == nil {
		return Hold{}, ErrGone
	}
	first.Waits = waitsIn(first.Thread)
	if first.Tracer != 0 {
		first.TracedBy = command(first.Tracer)
	}
	return *first, nil
}

// holdOf reads the status of a thread (proc_pid_status(5)). One that has ended holds nothing,
// unless a tracer has yet to take note of that.
func holdOf(status []byte) (h Hold, ok bool) {
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			h.Command = value
		case "State":
			h.State = value
		case "Pid":
			h.Thread = number(value)
		case "TracerPid":
			h.Tracer = number(value)
		case "NSpid":
			ids := strings.Fields(value)
			h.Init = len(ids) > 1 && ids[len(ids)-1] == "1"
		}
	}
	ended := strings.HasPrefix(h.State, "Z") || strings.HasPrefix(h.State, "X")
	return h, h.Thread != 0 && (!ended || h.Tracer != 0)
}

func number(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func waitsIn(pid uint32) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	if s := string(b); err == nil && s != "0" {
		return s
	}
	return ""
}

func command(pid uint32) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "which cannot be read"
	}
	return strings.TrimSpace(string(b))
}

// isInit reports whether a process is the first one of a PID namespace other than the one that
// /proc shows.
func isInit(pid uint32) (bool, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false, unread(pid, err)
	}
	h, _ := holdOf(b)
	return h.Init, nil
}

// unread converts an error of reading a process's files in /proc: [ErrGone] if nothing has the pid.
func unread(pid uint32, err error) error {
	if absent(int(pid)) {
		return ErrGone
	}
	return fmt.Errorf("read the state of process %d: %w", pid, err)
}
