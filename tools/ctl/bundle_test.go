// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/history/recorder"
	"berth/tools/bundle"
)

func readBundle(t *testing.T, path string) *bundle.Bundle {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := bundle.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A bundle is a file of its owner's alone, and takes no other file's place.
func TestABundleIsAFile(t *testing.T) {
	f := withHistory()
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, err := f.report(t, "bundle", path, "--since", "2h"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	b := readBundle(t, path)
	v := b.Verdicts()
	if !b.Manifest.Running || !b.Manifest.Exact || len(b.Records) != 1 || len(v) != 1 || !v[0].OOM {
		t.Errorf("%+v %v", b.Manifest, v)
	}
	if _, err := f.report(t, "bundle", path); err == nil || !strings.Contains(err.Error(), "is there") {
		t.Errorf("over a file that is there: %v", err)
	}
	for _, args := range [][]string{{"bundle"}, {"bundle", "a", "b"}, {"bundle", path + "2", "--since", "-1h"}} {
		if _, err := f.report(t, args...); err == nil {
			t.Errorf("%v is no error", args)
		}
	}
	if out, err := f.report(t, "bundle", "-"); err != nil || !strings.HasPrefix(out, "\x1f\x8b") {
		t.Errorf("to the standard output: %v", err)
	}
	if _, err := f.report(t, "bundle", path+"3", "--since", "1m"); err != nil {
		t.Fatal(err)
	}
	if b := readBundle(t, path+"3"); len(b.Entries) != 0 {
		t.Errorf("%d entries are older than --since", len(b.Entries))
	}
}

// A berth that does not run has left its timeline.
func TestABundleOfABerthThatDoesNotRun(t *testing.T) {
	root := t.TempDir()
	r := recorder.Open(recorder.Config{Dir: filepath.Join(root, "timeline"), MaxBytes: 1 << 20, MaxAge: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- r.Run(ctx) }()
	id := strings.Repeat("a", 64)
	names := event.Names{Namespace: "ns", Pod: "web", UID: "u", Sandbox: strings.Repeat("b", 64), Container: "app"}
	r.Add(event.Entry{At: clock.Stamped(time.Now()), ID: id, Event: event.ContainerCreated{Names: names}})
	r.Add(event.Entry{At: clock.Stamped(time.Now()), ID: id, Event: event.ExitSettled{Exit: event.Exit{Code: 42, Measured: true, Reason: "Error", Witness: "kernel"}}})
	cancel()
	<-ran
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	if _, err := newFake().report(t, "bundle", path, "--root", root); err != nil {
		t.Fatal(err)
	}
	b := readBundle(t, path)
	v := b.Verdicts()
	if len(v) != 1 || v[0].Code != 42 || v[0].Of != names || b.Manifest.Running || len(b.Manifest.Missing) == 0 {
		t.Errorf("%v %+v", v, b.Manifest)
	}
	if _, err := newFake().report(t, "bundle", path+"2", "--root", t.TempDir()); err == nil || !strings.Contains(err.Error(), "setting root") {
		t.Errorf("a directory without a timeline: %v", err)
	}
}
