// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	"google.golang.org/protobuf/proto"

	"berth/internal/exit"
)

// Containerd runs a shim's program after each deletion, which took more time than the deletion.
// Where the OCI runtime has no record, nothing is left to be done; everything else is done by the
// shim's own program.
func TestACleanupWithNothingLeftDoesNotStartAShim(t *testing.T) {
	dir := t.TempDir()
	records, shim := filepath.Join(dir, "it's records"), filepath.Join(dir, "the shim's runc")
	try(t, os.MkdirAll(filepath.Join(records, otherID), 0o700))
	try(t, os.WriteFile(shim, []byte("#!/bin/sh\nprintf 'shim %s' \"$*\"\n"), 0o700))
	c := cleanups{dir: filepath.Join(dir, "programs")}
	path, err := c.write(t.Context(), cleanupScript, shim, records)
	try(t, err)
	if again, err := c.write(t.Context(), cleanupScript, shim, records); err != nil || again != path {
		t.Errorf("made again: %s %v", again, err)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(path, args...).Output()
		try(t, err)
		return string(out)
	}
	var r taskv2.DeleteResponse
	out := run("-namespace", "k8s.io", "-address", "", "-id", thisID, "-bundle", "/b", "delete")
	if err := proto.Unmarshal([]byte(out), &r); err != nil || r.GetExitStatus() != exit.CodeUnknown {
		t.Errorf("with nothing left: %q: %v %v", out, &r, err)
	}
	for _, args := range [][]string{
		{"-namespace", "k8s.io", "-id", otherID, "-bundle", "/b", "delete"}, // there is a record
		{"-namespace", "k8s.io", "-id", thisID, "-bundle", "/b", "start"},
		{"-info"},
		{"delete"},
	} {
		want := "shim " + args[0]
		for _, arg := range args[1:] {
			want += " " + arg
		}
		if got := run(args...); got != want {
			t.Errorf("%q: %q", args, got)
		}
	}
}

// A directory that nothing can be executed in leaves the shim's own program in place.
func TestACleanupThatCannotBeRunIsNotUsed(t *testing.T) {
	c := cleanups{dir: filepath.Join(t.TempDir(), "file", "below")}
	try(t, os.WriteFile(filepath.Dir(c.dir), nil, 0o600))
	if path, err := c.write(t.Context(), cleanupScript, "/shim", "/records"); err == nil {
		t.Errorf("%s can be run", path)
	}
}

// After a power cut the program was there and empty, and it stayed so for good.
func TestACleanupThatAPowerCutHasEmptiedIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	shim := filepath.Join(dir, "shim")
	try(t, os.WriteFile(shim, []byte("#!/bin/sh\n"), 0o700))
	for range 2 {
		c := cleanups{dir: filepath.Join(dir, "programs")}
		path, err := c.write(t.Context(), cleanupScript, shim, filepath.Join(dir, "records"))
		try(t, err)
		try(t, os.Truncate(path, 0))
	}
}
