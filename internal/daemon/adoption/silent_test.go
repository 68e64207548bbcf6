// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"maps"
	"strings"
	"testing"

	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
)

// PROPERTIES 33: a shim that does not answer right after a start of containerd has not said that its pod
// cannot be moved. It is asked again, on both ways, also after --switch, when nobody serves the pods.
func TestAShimThatIsSlowIsAskedAgain(t *testing.T) {
	f, h := startFake(t, "here"), newHost(t)
	f.pod("p1", "c1")
	f.silent = 5
	h.expect(f, adopt.Request{Switch: f.turnOff()})
	if owners := h.owners(); !maps.Equal(owners, map[string]state.Owner{"p1": state.OwnerBerth}) {
		t.Errorf("on record are %v", owners)
	}
	f.silent = 5
	h.expect(f, adopt.Request{Back: true})
	if owners := h.owners(); len(owners) > 0 {
		t.Errorf("on record are %v", owners)
	}
	f.silent = 5
	h.expect(f, adopt.Request{}) // the plug-in is off already
	if owners := h.owners(); len(owners) != 1 {
		t.Errorf("on record are %v", owners)
	}
}

// A dry run says how it is now, and is not kept waiting.
func TestADryRunAsksAShimOnce(t *testing.T) {
	f, h := startFake(t, "here"), newHost(t)
	f.pod("p1", "c1")
	f.set(false)
	f.silent = 1 << 20
	h.expect(f, adopt.Request{DryRun: true}, "not answered")
	if f.asked != 2 {
		t.Errorf("two shims were asked %d times", f.asked)
	}
}

// PROPERTIES 46: what berth says after --switch is true: it was run, the plug-in is off, and no pod was
// taken over. A shim that did not answer is not said to be a pod that cannot be adopted.
func TestWhatIsRefusedAfterTheSwitchIsSaidAsItIs(t *testing.T) {
	f, h := startFake(t, "here"), newHost(t)
	f.pod("p1", "c1")
	f.silent = 1 << 20
	h.patience = 1
	err := h.adopt(f, adopt.Request{Switch: f.turnOff()})
	if err == nil || strings.Contains(err.Error(), "nothing was changed") || strings.Contains(err.Error(), "cannot be adopted") ||
		!strings.Contains(err.Error(), "not answered") || !strings.Contains(err.Error(), "the plug-in is off") || !strings.Contains(err.Error(), "no pod was taken over") {
		t.Errorf("after --switch: %v", err)
	}
	if err = h.adopt(f, adopt.Request{}); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("with a plug-in that was off before: %v", err)
	}
}
