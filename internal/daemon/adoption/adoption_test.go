// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
)

// An interface of CNI may have a dash in its name, as a network may: what a pod has of either is
// found, for a pod with a second interface is refused.
func TestTheCachedResultsOfAPodAreFound(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"net-p1-eth0", "cni-loopback-p1-lo", "my-net-p1-net-1", "net-p10-eth0", "net-gone-eth0", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := cachedResults(dir, []adopt.Object{{ID: "p1"}, {ID: "p2"}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range got["p1"] {
		names = append(names, string(c.Text))
	}
	slices.Sort(names)
	if want := []string{"cni-loopback-p1-lo", "my-net-p1-net-1", "net-p1-eth0"}; len(got) != 1 || !slices.Equal(names, want) {
		t.Errorf("found %q, want those of p1: %q", got, want)
	}
}

// PROPERTIES 46: a dry run makes no records, and goes on beside a berth that serves. An adoption says
// that berth has to be stopped.
func TestRecordsAreLockedUnlessItIsADryRun(t *testing.T) {
	dir := t.TempDir()
	dry := adopt.Request{DryRun: true}
	recs, err := openRecords(dir, dry)
	if err != nil {
		t.Fatal(err)
	}
	if err := recs.close(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("a dry run has made %v", left)
	}
	serves, err := state.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer serves.Close()
	if recs, err = openRecords(dir, dry); err != nil || recs.owner != "" {
		t.Errorf("a dry run beside a berth: %v", err)
	}
	for _, r := range []adopt.Request{{}, {Back: true}, {Back: true, DryRun: true}} {
		if _, err := openRecords(dir, r); err == nil || !strings.Contains(err.Error(), "systemctl stop berth") {
			t.Errorf("%+v beside a berth: %v", r, err)
		}
	}
}

// PROPERTIES 46: a pod is on record with its owner, also for the next call. What was taken before it was
// cut off stays as it is on record, what the plug-in has removed since goes, and nothing is left of
// what is the plug-in's.
func TestAnOwnerIsOnRecordForTheNextCall(t *testing.T) {
	dir := t.TempDir()
	p := adopt.Pod{ID: "p1", Sandbox: state.Sandbox{ID: "p1", Config: &runtimeapi.PodSandboxConfig{}}, Status: state.Status{Phase: state.Ready, Owner: state.OwnerTaking}}
	container := func(id string, taken bool, attempt uint32) adopt.Container {
		cfg := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Attempt: attempt}}
		return adopt.Container{ID: id, Taken: taken, Container: state.Container{ID: id, PodID: "p1", Config: cfg}, Status: state.Status{Phase: state.Created}}
	}
	call := func(do func(recs *records)) {
		t.Helper()
		recs, err := openRecords(dir, adopt.Request{})
		if err != nil {
			t.Fatal(err)
		}
		do(recs)
		if err := recs.close(); err != nil {
			t.Fatal(err)
		}
	}
	attempts := func(recs *records) map[string]uint32 {
		is := map[string]uint32{}
		for _, ct := range recs.loaded.Containers {
			is[ct.ID] = ct.Config.GetMetadata().GetAttempt()
		}
		return is
	}
	call(func(recs *records) {
		p.Containers = []adopt.Container{container("taken", false, 1), container("not", false, 1), container("removed", false, 1)}
		if err := recs.begin(p, oomKills{}, clock.New(nil).Now()); err != nil {
			t.Fatal(err)
		}
	})
	call(func(recs *records) {
		if got := recs.ownerOf("p1"); got != state.OwnerTaking {
			t.Errorf("the owner is %q", got)
		}
		p.Containers = []adopt.Container{container("taken", true, 2), container("not", false, 2)}
		if err := recs.begin(p, oomKills{}, clock.New(nil).Now()); err != nil {
			t.Fatal(err)
		}
		if err := recs.Note(t.Context(), "p1", state.OwnerBerth); err != nil {
			t.Fatal(err)
		}
	})
	call(func(recs *records) {
		if got := attempts(recs); recs.ownerOf("p1") != state.OwnerBerth || len(got) != 2 || got["taken"] != 1 || got["not"] != 2 {
			t.Errorf("%q has %v", recs.ownerOf("p1"), got)
		}
		if err := recs.Note(t.Context(), "p1", state.OwnerPlugIn); err != nil {
			t.Fatal(err)
		}
	})
	call(func(recs *records) {
		if got := attempts(recs); len(got) > 0 || len(recs.now) > 0 {
			t.Errorf("left: %v %v", got, recs.now)
		}
		if err := recs.Note(t.Context(), "p1", state.OwnerGiving); err == nil {
			t.Error("what is not on record was given away")
		}
	})
}
