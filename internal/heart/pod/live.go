// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync/atomic"

	"berth/internal/heart/state"
)

// live is the running part of a unit, or the part about to run, recorded or not.
type live struct {
	proc    atomic.Pointer[state.Process] // made, perhaps not recorded yet
	io      atomic.Pointer[Stdio]         // nil when there is none
	selinux atomic.Pointer[string]        // the process's SELinux label; "" for none
}

func (l *live) setProcess(p state.Process) { l.proc.Store(&p) }

// process returns the unit's process as known now, recorded or not.
func (l *live) process() state.Process { return valueOf(&l.proc) }

func (l *live) setStdio(s Stdio) { l.io.Store(&s) }

func (l *live) stdio() Stdio { return valueOf(&l.io) }

func (l *live) setLabel(label string) { l.selinux.Store(&label) }

// label returns the SELinux label of the unit's process, recorded or not; "" for none.
func (l *live) label() string { return valueOf(&l.selinux) }

// valueOf returns the value that was stored last, or the zero value.
func valueOf[T any](p *atomic.Pointer[T]) (v T) {
	if at := p.Load(); at != nil {
		v = *at
	}
	return v
}
