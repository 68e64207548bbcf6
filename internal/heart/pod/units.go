// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"berth/internal/base/clock"
	"berth/internal/heart/state"
)

// units makes units, each with the workload that its kind and its handler ask for.
type units struct {
	runtime Runtime
	pins    Pins
	store   Store
	clock   *clock.Clock
}

func (m units) sandbox(s state.Sandbox, st state.Status, h Handler) *unit {
	sandboxer := m.sandboxerOf(&s)
	u := &unit{
		record:    record{id: s.ID, of: state.KindSandbox, store: m.store},
		sandbox:   &s,
		handler:   h,
		sandboxer: sandboxer,
		workload:  sandboxProcess{sandboxer, s.ID},
		createdAt: s.CreatedAt,
		clock:     m.clock,
	}
	u.pod = u
	u.init(st)
	return u
}

func (m units) container(c state.Container, st state.Status, pod *unit) *unit {
	u := &unit{
		record:    record{id: c.ID, of: state.KindContainer, store: m.store},
		container: &c,
		pod:       pod,
		handler:   pod.handler,
		workload:  task{m.runtime, c.ID},
		createdAt: c.CreatedAt,
		clock:     m.clock,
	}
	u.init(st)
	return u
}

// sandboxerOf returns the sandboxer of a sandbox.
func (m units) sandboxerOf(s *state.Sandbox) Sandboxer {
	switch {
	case s.Sandboxer != "":
		return m.runtime.Sandboxer(s.Sandboxer)
	case s.Pinned:
		return newPinner(m.runtime, m.pins, m.clock)
	default:
		return pauser{m.runtime, m.runtime}
	}
}
