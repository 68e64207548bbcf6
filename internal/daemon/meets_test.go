// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/engine/probe"
	"berth/internal/engine/shims"
	"berth/internal/heart/state"
	"berth/test/durabletest"
)

// PROPERTIES 33: another containerd does not know the pods, which is not an answer. It is used once
// they are removed, after a reboot, which has ended them, and when an operator has said that the
// one before is gone. What cannot be found out about it keeps berth from none.
func TestAnotherContainerdIsNotUsedWhileThereArePods(t *testing.T) {
	known := &knownContainerd{root: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	meets := func(uuid string, units int, want bool) {
		t.Helper()
		_, err := known.meets(uuid, units)
		if (err == nil) != want {
			t.Fatalf("%s, with %d on record: %v", uuid, units, err)
		}
		if err != nil && (!errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), state.ContainerdFile(known.root))) {
			t.Errorf("the error does not say what to do: %v", err)
		}
	}
	meets("a", 3, true) // pods of a berth that did not note it
	meets("b", 3, false)
	meets("", 3, true) // one without a UUID
	meets("a", 3, true)
	meets("b", 0, true)
	meets("a", 1, false)
	if err := (state.Containerd{UUID: "b", Boot: "an earlier one"}).Note(known.root); err != nil {
		t.Fatal(err)
	}
	meets("a", 1, true)
	meets("b", 1, false)
	if err := os.Remove(state.ContainerdFile(known.root)); err != nil {
		t.Fatal(err)
	}
	meets("b", 1, true)
	if err := os.WriteFile(state.ContainerdFile(known.root), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	meets("c", 1, true)
}

// PROPERTIES 54: where a containerd has its bundles is on record with it, and not that of another.
func TestTheStateDirectoryOfAContainerdIsOnRecord(t *testing.T) {
	root := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	berth := func(uuid string) engine {
		e := engine{known: &knownContainerd{root: root, log: log}, shims: shims.New(shims.Config{Logger: log}), probe: probe.New(probe.Config{})}
		if err := e.meets(uuid, 0); err != nil {
			t.Fatal(err)
		}
		return e
	}
	const dir = "/somewhere/containerd"
	berth("a").known.noteStateDir(dir)
	if berth("a").shims.Learn(dir) {
		t.Error("the next berth does not know the state directory")
	}
	if !berth("b").shims.Learn(dir) {
		t.Error("it is taken for that of another containerd")
	}
}

// PROPERTIES 33: which containerd has the pods is on record, and cannot be read now, since no more
// files can be opened for example. Any containerd was taken for the right one then, and was on
// record from then on.
func TestARecordThatCannotBeReadIsNotReplaced(t *testing.T) {
	root := t.TempDir()
	known := &knownContainerd{root: root, log: slog.New(slog.DiscardHandler)}
	if _, err := known.meets("a", 0); err != nil {
		t.Fatal(err)
	}
	file := state.ContainerdFile(root)
	if err := errors.Join(os.Rename(file, file+".aside"), os.Symlink(file, file)); err != nil { // ELOOP stands for EMFILE
		t.Fatal(err)
	}
	if _, err := known.meets("b", 3); !errdefs.IsUnavailable(err) || !errors.Is(err, unix.ELOOP) {
		t.Errorf("what could not be read: %v", err)
	}
	if to, err := os.Readlink(file); err != nil || to != file {
		t.Errorf("the record was replaced: %q %v", to, err)
	}
	if err := os.Rename(file+".aside", file); err != nil {
		t.Fatal(err)
	}
	if c, err := state.ReadContainerd(root); err != nil || c.UUID != "a" {
		t.Errorf("on record is %+v: %v", c, err)
	}
	if _, err := known.meets("a", 3); err != nil {
		t.Error(err)
	}
}

// PROPERTIES 63: a damaged record of the containerd is reported, and is not used. If one bit of the
// UUID in it had changed, berth took its own containerd for another one and refused to work with it
// until a person removed the file; if one bit of the boot ID had, it accepted any other containerd.
func TestADamagedRecordOfTheContainerdKeepsBerthFromNone(t *testing.T) {
	root := t.TempDir()
	var said bytes.Buffer
	known := &knownContainerd{root: root, log: slog.New(slog.NewTextHandler(&said, nil))}
	if _, err := known.meets("a-uuid", 0); err != nil {
		t.Fatal(err)
	}
	durabletest.Damage(t, state.ContainerdFile(root), func(where string) {
		said.Reset()
		c, damaged := state.ReadContainerd(root)
		if damaged == nil && c.UUID != "a-uuid" || damaged != nil && !errdefs.IsDataLoss(damaged) {
			t.Errorf("%s: %+v, %v", where, c, damaged)
		}
		if _, err := known.meets("a-uuid", 3); err != nil || (said.Len() > 0) != (damaged != nil) {
			t.Errorf("%s: %v, %v, and the log says %q", where, err, damaged, said.String())
		}
	})
}
