// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Only what runs is checkpointed. A directory that was made for nothing is removed, and one that was
// there is left alone.
func TestCheckpointOfAPod(t *testing.T) {
	f := services()
	at := serveFake(t, f)
	dir := filepath.Join(t.TempDir(), "c")
	out, problem := berth(t, at, "checkpoint", "--pod", "web", dir)
	if want := "checkpoint pod aaa111 " + dir + " [bbb222]"; !slices.Contains(f.calls, want) {
		t.Errorf("got %q, want %q: %s", f.calls, want, problem)
	}
	says(t, "checkpoint", out, dir)
	if _, problem := berth(t, at, "checkpoint", "--pod", "web", dir); !strings.Contains(problem, "exists") {
		t.Errorf("%s", problem)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	f.refuseRun = errors.New("no CRIU")
	if _, problem := berth(t, at, "checkpoint", "--pod", "web", dir+"2"); !strings.Contains(problem, "no CRIU") {
		t.Errorf("%s", problem)
	}
	if _, err := os.Stat(dir + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Error("the directory was left")
	}
}

// The pod is asked for as it was, and its containers are started.
func TestRestore(t *testing.T) {
	f := services()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pod.json"), []byte(`{"version":1,"runtimeHandler":"runc","config":{"metadata":{"name":"web"}},
		"containers":[{"archive":"x.tar","config":{"metadata":{"name":"nginx"}}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, problem := berth(t, serveFake(t, f), "restore", dir)
	for _, want := range []string{"restore pod " + dir + " runc web", "start nginx"} {
		if !slices.Contains(f.calls, want) {
			t.Errorf("got %q, want %q: %s", f.calls, want, problem)
		}
	}
	says(t, "restore", out, "aaa999")
	if _, problem := berth(t, serveFake(t, f), "restore", t.TempDir()); !strings.Contains(problem, "it has no pod.json") {
		t.Errorf("%s", problem)
	}
}
