// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	berthv1 "berth/api/berth/v1"
	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/tools/bundle"
)

var bundleFile = flag.String("bundle", "", "play the facts of this bundle instead of those in testdata, and print what happens")

// replayed plays a bundle in an order. differ are the verdicts that differ, and report is what the
// watch has found, or "".
func replayed(t *testing.T, path string, seed uint64) (differ []string, report, happened string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil { // make runs in the module's root, and the test below it
		f, err = os.Open(filepath.Join("../..", path))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := bundle.Read(f)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if len(b.Verdicts()) == 0 && *bundleFile == "" {
		t.Fatalf("%s has no verdict: nothing is shown", path)
	}
	dir := tempDir(t)
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) { differ, report, happened = Play(t.Context(), dir, seed, b) })
	return differ, report, happened
}

// PROPERTIES 44: the bundles of faults on real machines, which test/fault writes with -update, come
// to the same verdicts in the simulation, in every order, and no promise is broken.
func TestBundlesReplayToTheSameVerdicts(t *testing.T) {
	if *bundleFile != "" {
		return
	}
	files, err := filepath.Glob("testdata/bundles/*.tar.gz")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d bundles: %v", len(files), err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
		t.Run(name, func(t *testing.T) {
			for seed := range min(orders, 3) {
				differ, report, happened := replayed(t, path, seed+1)
				if report != "" || len(differ) > 0 {
					t.Fatalf("in the order of seed %d: %s\n%s\n%s", seed+1, strings.Join(differ, "\n"), happened, report)
				}
			}
		})
	}
}

// The machine reboots while a container runs. Its code is unknown in the bundle, and when it is
// played. What had ended before keeps its code.
func TestARebootIsReplayed(t *testing.T) {
	if *bundleFile != "" {
		return
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	b := bundle.New(bundle.Manifest{From: at}, &berthv1.StateResponse{Exact: true})
	pod := event.Names{Namespace: "ns", Pod: "web", UID: "u"}
	podID := strings.Repeat("a", 64)
	add := func(after time.Duration, of event.Names, id string, e event.Event) {
		raw, err := json.Marshal(event.Entry{At: clock.Stamped(at.Add(after)), ID: id, Event: e})
		if err != nil {
			t.Fatal(err)
		}
		b.Add(of, raw)
	}
	add(0, event.Names{}, "", event.BerthStarted{Version: "1"})
	add(time.Second, pod, podID, event.SandboxReady{Names: pod, Pinned: true})
	for n, name := range []string{"runs", "ended"} {
		of, id := pod, strings.Repeat(fmt.Sprint(n+1), 64)
		of.Container, of.Sandbox = name, podID
		add(2*time.Second, of, id, event.ContainerCreated{Names: of})
		add(3*time.Second, of, id, event.ContainerRunning{})
		ended := event.Exit{Code: 42, Measured: true, Reason: "Error", Witness: "kernel", Ended: clock.Stamped(at.Add(4 * time.Second))}
		if name == "runs" {
			ended = event.Exit{Code: 255, Reason: "Unknown", Witness: "audit"}
			add(61*time.Second, of, id, event.ExitSettled{Exit: ended, Evidence: event.Evidence{
				Said: []event.Said{{At: clock.Stamped(at.Add(61 * time.Second)), Witness: "audit"}},
			}})
		} else {
			add(4*time.Second, of, id, event.ExitSettled{Exit: ended, Evidence: event.Evidence{
				Said: []event.Said{{At: ended.Ended, Ended: ended.Ended, Witness: "kernel", Code: 42, Measured: true}},
			}})
		}
	}
	add(time.Minute, event.Names{}, "", event.BerthStarted{Version: "1", After: event.AfterReboot})
	for seed := range min(orders, 3) {
		var differ []string
		var report, happened string
		dir := tempDir(t)
		synctest.Test(t, func(t *testing.T) { differ, report, happened = Play(t.Context(), dir, seed+1, b) })
		_ = os.RemoveAll(dir)
		if len(differ) > 0 || report != "" || !strings.Contains(happened, "reboot") || !strings.Contains(happened, "255 Unknown") {
			t.Fatalf("%v\n%s\n%s", differ, happened, report)
		}
	}
}

// TestBundle plays the file of -bundle.
func TestBundle(t *testing.T) {
	if *bundleFile == "" {
		return
	}
	differ, report, happened := replayed(t, *bundleFile, max(*seed, 1))
	fmt.Println(happened)
	for _, d := range differ {
		t.Error(d)
	}
	if report != "" {
		t.Error(report)
	}
}

// PROPERTIES 44: a berth with a planted defect has made each of these bundles (test/fault -update).
// The bundle alone shows that its verdict was wrong, in every order, and which one is right.
func TestADefectIsFoundFromItsBundle(t *testing.T) {
	if *bundleFile != "" {
		return
	}
	for name, want := range map[string]string{
		"code-cut-short": "the bundle has 10 Error, and it is 42 Error",
		"oom-forgotten":  "the bundle has 137 Error, signal 9, and it is 137 OOMKilled, signal 9, OOM",
	} {
		for seed := range min(orders, 3) {
			differ, report, happened := replayed(t, "testdata/planted/"+name+".tar.gz", seed+1)
			if len(differ) == 0 || !strings.HasSuffix(differ[0], want) || report != "" {
				t.Errorf("%s: %q\n%s\n%s", name, differ, happened, report)
			}
		}
	}
}
