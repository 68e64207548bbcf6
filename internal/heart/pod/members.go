// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"maps"
	"slices"
	"sync"
)

// members are the containers of a sandbox.
type members struct {
	mu     sync.RWMutex
	byID   map[string]*unit
	sealed bool // the sandbox's record is being deleted: no container can join any more
}

// list lists them by age.
func (m *members) list() []*unit {
	m.mu.RLock()
	list := slices.Collect(maps.Values(m.byID))
	m.mu.RUnlock()
	byAge(list)
	return list
}

// join adds a container. False: the sandbox is being removed.
func (m *members) join(c *unit) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sealed {
		return false
	}
	if m.byID == nil {
		m.byID = map[string]*unit{}
	}
	m.byID[c.id] = c
	return true
}

// leave removes a container.
func (m *members) leave(c *unit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byID, c.id)
}

// seal keeps containers from joining from now on. It returns how many are there; it takes effect
// only if there are none.
func (m *members) seal() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sealed = len(m.byID) == 0
	return len(m.byID)
}
