// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"

	"berth/internal/base/event"
)

// names are those of what events are about, for the fields of the journal. They are learnt from the
// events, and asked of nobody: whoever notes an event may hold a lock.
type names struct {
	mu   sync.Mutex
	byID map[string]event.Names
}

// Named says how clients call a sandbox or container that was there before this berth.
func (o *Observer) Named(id string, of event.Names) { o.names.learn(id, of) }

func (n *names) learn(id string, of event.Names) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byID == nil {
		n.byID = map[string]event.Names{}
	}
	n.byID[id] = of
}

// noted returns the names of what an event is about, zero if they are not known.
func (n *names) noted(id string, e event.Event) event.Names {
	if id == "" {
		return event.Names{}
	}
	if named, ok := e.(interface{ Of() event.Names }); ok {
		switch e.(type) {
		case event.SandboxNotMade, event.ContainerNotMade: // nothing follows
			return named.Of()
		}
		n.learn(id, named.Of())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.byID[id]
	if _, ok := e.(event.Removed); ok {
		delete(n.byID, id)
	}
	return of
}
