// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"maps"
	"os"
	"slices"
	"testing"

	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
	"berth/internal/host/pidfd"
)

// noted returns which containerd the records name.
func (h *host) noted() string {
	h.t.Helper()
	c, err := state.ReadContainerd(h.cfg.Root)
	if err != nil {
		h.t.Fatal(err)
	}
	return c.UUID
}

// PROPERTIES 46: another containerd than the one that has the pods knows none of them, which does not say
// that they are gone. An adoption that was cut off there had its records deleted here, and berth would
// have ended the pods as nobody's, back at the first one.
func TestAnAdoptionIsNotGoneOnWithAtAnotherContainerd(t *testing.T) {
	here, there, h := startFake(t, "here"), startFake(t, "there"), newHost(t)
	here.set(false)
	there.set(false)
	here.pod("p1", "c1")
	there.pod("p2", "c2")
	here.fails["p1"] = true
	atFirst := ""
	here.updated = func(string) {
		if atFirst == "" {
			atFirst = h.noted()
		}
	}
	h.expect(here, adopt.Request{}, "made to fail")
	if atFirst != "here" {
		t.Errorf("as the first object was taken, the records named the containerd %q", atFirst)
	}
	for _, r := range []adopt.Request{{}, {Back: true}, {DryRun: true}, {Back: true, DryRun: true}, {Back: true, Leave: true}} {
		h.expect(there, r, "here", "there", state.ContainerdFile(h.cfg.Root))
		if owners := h.owners(); !maps.Equal(owners, map[string]state.Owner{"p1": state.OwnerTaking}) || len(there.owned()) > 0 {
			t.Fatalf("back %t, dry run %t: on record are %v, and there it has %v", r.Back, r.DryRun, owners, there.owned())
		}
	}
	here.fails = nil
	h.expect(here, adopt.Request{})
	if owners := h.owners(); !maps.Equal(owners, map[string]state.Owner{"p1": state.OwnerBerth}) || !slices.Equal(here.owned(), []string{"c1", "p1"}) {
		t.Errorf("on record are %v, and it has %v", owners, here.owned())
	}
}

// PROPERTIES 46: berth has pods with the containerd inside it when it is told to adopt those of another.
func TestPodsAreNotAdoptedBesideThoseOfAnotherContainerd(t *testing.T) {
	there, h := startFake(t, "there"), newHost(t)
	there.set(false)
	there.pod("p2", "c2")
	store, err := state.Open(h.cfg.Root)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Commit(state.NewSandbox(state.Sandbox{ID: "own"}, state.Status{Phase: state.Ready})); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	boot, err := pidfd.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := (state.Containerd{UUID: "inside", Boot: boot}).Note(h.cfg.Root); err != nil {
		t.Fatal(err)
	}
	h.expect(there, adopt.Request{}, "inside", "there")
	if h.noted() != "inside" || len(there.owned()) > 0 {
		t.Errorf("the records name %q, and there it has %v", h.noted(), there.owned())
	}
}

// A berth without pods may have worked with any containerd, and one that has none can be left for another.
// What cannot be read is not known, and nothing is done before it is.
func TestTheContainerdOfAnAdoptionIsOnRecord(t *testing.T) {
	there, h := startFake(t, "there"), newHost(t)
	there.set(false)
	there.pod("p2", "c2")
	h.cfg.Root += "/lib"
	if err := os.MkdirAll(state.ContainerdFile(h.cfg.Root), 0o700); err != nil { // it cannot be read
		t.Fatal(err)
	}
	h.expect(there, adopt.Request{}, "which containerd has the pods")
	if len(there.owned()) > 0 {
		t.Fatalf("it has %v", there.owned())
	}
	if err := os.Remove(state.ContainerdFile(h.cfg.Root)); err != nil {
		t.Fatal(err)
	}
	boot, err := pidfd.BootID()
	if err != nil {
		t.Fatal(err)
	}
	if err := (state.Containerd{UUID: "another", Boot: boot}).Note(h.cfg.Root); err != nil {
		t.Fatal(err)
	}
	h.expect(there, adopt.Request{DryRun: true})
	if got := h.noted(); got != "another" {
		t.Errorf("a dry run has noted %q", got)
	}
	h.expect(there, adopt.Request{})
	if got := h.noted(); got != "there" {
		t.Errorf("the records name %q", got)
	}
}

// A command that restarts containerd with another directory, or without the disk that has it, does not
// have the pods that were there before it.
func TestASwitchToAnotherContainerdTakesNothing(t *testing.T) {
	f, h := startFake(t, "here"), newHost(t)
	f.pod("p1", "c1")
	f.uuidOff = "there"
	h.expect(f, adopt.Request{Switch: f.turnOff()}, "here", "there", "--switch")
	if owners := h.owners(); len(owners) > 0 || len(f.owned()) > 0 {
		t.Errorf("on record are %v, and it has %v", owners, f.owned())
	}
}

// PROPERTIES 46: containerd has lost the pause container of a pod. The way back says so before it hands over
// the containers, and what it says to do about a pod that was on its way is done with `berth adopt`.
func TestAPodWithoutItsSandboxIsNotHandedOver(t *testing.T) {
	f, h := startFake(t, "here"), newHost(t)
	f.set(false)
	f.pod("p1", "c1")
	h.expect(f, adopt.Request{})
	f.remove("p1")
	h.expect(f, adopt.Request{Back: true}, "nothing was changed")
	if owners := h.owners(); !maps.Equal(owners, map[string]state.Owner{"p1": state.OwnerBerth}) || !slices.Equal(f.owned(), []string{"c1"}) {
		t.Fatalf("on record are %v, and it has %v", owners, f.owned())
	}
	f.pod("p2", "c2")
	f.fails["p2"] = true
	h.expect(f, adopt.Request{}, "made to fail")
	f.remove("p2")
	h.expect(f, adopt.Request{Back: true}, "nothing was changed")
	f.remove("c2")
	h.expect(f, adopt.Request{})
	if owners := h.owners(); !maps.Equal(owners, map[string]state.Owner{"p1": state.OwnerBerth}) {
		t.Errorf("on record are %v", owners)
	}
}
