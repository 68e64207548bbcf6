// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"berth/internal/base/event"
)

// What an event is about has its names in the journal: from the event that begins its history, or from
// its record, until its record is deleted.
func TestNamesAreLearntFromEvents(t *testing.T) {
	var n names
	web := event.Names{Namespace: "ns", Pod: "web", Container: "app"}
	if of := n.noted("c1", event.ContainerCreated{Names: web}); of != web {
		t.Errorf("at the creation: %v", of)
	}
	if of := n.noted("c1", event.ExitSettled{}); of != web {
		t.Errorf("at the exit: %v", of)
	}
	n.learn("c2", web)
	if of := n.noted("c2", event.ExitSettled{}); of != web {
		t.Errorf("of a record: %v", of)
	}
	if of := n.noted("c1", event.Removed{}); of != web {
		t.Errorf("at the removal: %v", of)
	}
	if of := n.noted("c3", event.ContainerNotMade{Names: web}); of != web {
		t.Errorf("of what was not made: %v", of)
	}
	if of := n.noted("", event.BerthStarted{}); of != (event.Names{}) {
		t.Errorf("of the node: %v", of)
	}
	n.noted("c2", event.Removed{})
	if len(n.byID) != 0 {
		t.Errorf("names are left: %v", n.byID)
	}
}
