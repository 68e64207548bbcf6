// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"berth/internal/base/exit"
)

// Containerd runs a shim's program after each deletion, which took more time than the deletion.
// Where the OCI runtime has no record, nothing is left to be done; everything else is done by the
// shim's own program.
func TestACleanupWithNothingLeftDoesNotStartAShim(t *testing.T) {
	dir := t.TempDir()
	records, shim := filepath.Join(dir, "it's records"), filepath.Join(dir, "the shim's runc")
	try(t, os.MkdirAll(filepath.Join(records, otherID), 0o700))
	try(t, os.WriteFile(shim, []byte("#!/bin/sh\nprintf 'shim %s' \"$*\"\n"), 0o700))
	c := Cleanups{dir: filepath.Join(dir, "programs")}
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
	c := Cleanups{dir: filepath.Join(t.TempDir(), "file", "below")}
	try(t, os.WriteFile(filepath.Dir(c.dir), nil, 0o600))
	if path, err := c.write(t.Context(), cleanupScript, "/shim", "/records"); err == nil {
		t.Errorf("%s can be run", path)
	}
}

// A directory on a file system that nothing could be executed from was remembered as such until
// berth started anew, and what was made had no program, also once there could have been one.
func TestACleanupThatCouldNotBeRunIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	s := NewCleanups(New(Config{}), dir, slog.New(slog.DiscardHandler))
	try(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""))
	defer func() { try(t, unix.Unmount(dir, 0)) }()
	if s.CanSpare(t.Context(), "") {
		t.Error("a shim may be shared where nothing can spare its containers")
	}
	try(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	if !s.CanSpare(t.Context(), "") {
		t.Error("no shim may be shared though there is a program again")
	}
}

// After berth's start nobody knows the shim of a pod that runs nothing, and after an upgrade the
// program of a shim is gone. What was made then was ended with the shim that pods shared.
func TestWhatSparesIsKnownOfAShimThatIsFound(t *testing.T) {
	dir := t.TempDir()
	s := New(Config{Logger: slog.New(slog.DiscardHandler)})
	c := NewCleanups(s, dir, slog.New(slog.DiscardHandler))
	defer s.Wait()
	s.Rejoin(thisID, "group-1", "runc")
	shim, _, end := startShim(t, "group-1")
	defer func() { end(); _ = shim.Wait() }()
	first := c.For(t.Context(), thisID, dir)
	if first == "" {
		t.Error("the shim was not looked for")
	}
	c.LearnHandler(t.Context(), thisID, "runc", dir)
	if got := c.HandlerProgram(thisID, "runc", dir); got != first {
		t.Errorf("the handler's program is %q and not %q", got, first)
	}
	try(t, os.Remove(shim.Path))
	if got := c.For(t.Context(), thisID, dir); got != first {
		t.Errorf("once the shim's program is gone there is %q in place of %q", got, first)
	}
	next := New(Config{Logger: slog.New(slog.DiscardHandler)})
	again := NewCleanups(next, dir, slog.New(slog.DiscardHandler))
	defer next.Wait()
	next.Rejoin(thisID, "group-1", "runc")
	again.LearnHandler(t.Context(), thisID, "runc", dir)
	if got := again.HandlerProgram(thisID, "runc", dir); got != "" {
		t.Errorf("shims are to be started by %s, which has nothing to run", got)
	}
	try(t, os.WriteFile(shim.Path, nil, 0o700)) // the upgrade has put another one there
	again.LearnHandler(t.Context(), thisID, "runc", dir)
	if got := again.HandlerProgram(thisID, "runc", dir); got != first {
		t.Errorf("after the upgrade the handler's program is %q and not %q", got, first)
	}
	if group, _ := next.Join(otherID, "runc", 9); group == "group-1" {
		t.Error("a pod joined a group whose shim is of an older program")
	}
}

// After a power cut the program was there and empty, and it stayed so for good.
func TestACleanupThatAPowerCutHasEmptiedIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	shim := filepath.Join(dir, "shim")
	try(t, os.WriteFile(shim, []byte("#!/bin/sh\n"), 0o700))
	for range 2 {
		c := Cleanups{dir: filepath.Join(dir, "programs")}
		path, err := c.write(t.Context(), cleanupScript, shim, filepath.Join(dir, "records"))
		try(t, err)
		try(t, os.Truncate(path, 0))
	}
}
