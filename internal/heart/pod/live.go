// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"

	"berth/internal/heart/state"
)

// live is the running part of a unit, or the part about to run, recorded or not.
type live struct {
	mu      sync.Mutex
	proc    state.Process // made, perhaps not recorded yet
	io      Stdio         // nil when there is none
	selinux string        // the process's SELinux label; "" for none
}

func (l *live) setProcess(p state.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proc = p
}

// process returns the unit's process as known now, recorded or not.
func (l *live) process() state.Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proc
}

func (l *live) setStdio(s Stdio) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.io = s
}

func (l *live) stdio() Stdio {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.io
}

func (l *live) setLabel(label string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.selinux = label
}

// label returns the SELinux label of the unit's process, recorded or not; "" for none.
func (l *live) label() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.selinux
}
