// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/engine/adopt"
)

// PROPERTIES 46: an adoption is killed between the guards of its tasks and the first record, or the command
// that restarts containerd leaves it down, so that nothing is on record. The way back removes the guards,
// beside which a plug-in of containerd 2.0 does not start, whether or not the plug-in serves.
func TestTheWayBackRemovesTheGuardsOfAnAdoptionThatWasCutOff(t *testing.T) {
	for _, version := range []string{"1.7.29", "2.0.5", "2.4.2"} {
		for _, serves := range []bool{true, false} {
			f, h := startFake(t, "here"), newHost(t)
			f.version = version
			f.pod("p1", "c1")
			down := filepath.Join(f.dir, "down")
			h.expect(f, adopt.Request{Switch: "touch " + down + "; exit 1"}, "--switch", "guard", "berth adopt --back")
			if len(f.guards()) != 1 {
				t.Fatalf("there are the guards %v", f.guards())
			}
			if err := os.Remove(down); err != nil {
				t.Fatal(err)
			}
			r := adopt.Request{Back: true}
			if !serves {
				f.set(false)
				r.Switch = f.turnOn()
			}
			h.expect(f, adopt.Request{Back: true, DryRun: true})
			if len(f.guards()) != 1 {
				t.Errorf("%s: a dry run has left the guards %v", version, f.guards())
			}
			h.expect(f, r)
			if left := f.guards(); len(left) > 0 {
				t.Errorf("%s, where the plug-in serves: %t: left are the guards %v", version, serves, left)
			}
		}
	}
}

// Where a plug-in does not remove the guards as it starts, and nobody waits for it, they are removed
// before it does.
func TestNoGuardIsLeftForAPluginThatDoesNotRemoveIt(t *testing.T) {
	for version, left := range map[string]int{"1.7.29": 0, "2.0.5": 0, "2.4.2": 1} {
		f, h := startFake(t, "here"), newHost(t)
		f.version = version
		f.pod("p1", "c1")
		down := filepath.Join(f.dir, "down")
		h.expect(f, adopt.Request{Switch: "touch " + down + "; exit 1"}, "--switch")
		if err := os.Remove(down); err != nil {
			t.Fatal(err)
		}
		f.set(false)
		h.expect(f, adopt.Request{Back: true})
		if guards := f.guards(); len(guards) != left {
			t.Errorf("%s: left are the guards %v", version, guards)
		}
	}
}

// PROPERTIES 46: the way back is killed after a plug-in of containerd 1.7 serves its pods again, and before
// the guards are removed, which that plug-in leaves. The next call has nothing on record, and removes them.
func TestTheWayBackThatWasCutOffAfterTheSwitchLeavesNoGuards(t *testing.T) {
	f, h := startFake(t, "here"), newHost(t)
	f.version = "1.7.29"
	f.pod("p1", "c1")
	f.set(false)
	h.expect(f, adopt.Request{})
	down := filepath.Join(f.dir, "down")
	h.expect(f, adopt.Request{Back: true, Switch: "touch " + down + "; " + f.turnOn()}, "down")
	if err := os.Remove(down); err != nil {
		t.Fatal(err)
	}
	if len(h.owners()) > 0 || len(f.guards()) == 0 {
		t.Fatalf("on record are %v, and there are the guards %v", h.owners(), f.guards())
	}
	h.expect(f, adopt.Request{Back: true, Switch: "exit 1"})
	if left := f.guards(); len(left) > 0 || !strings.Contains(h.said, "guard") {
		t.Errorf("left are the guards %v:\n%s", left, h.said)
	}
}
