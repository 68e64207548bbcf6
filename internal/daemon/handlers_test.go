// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/base/asynclog"
	"berth/internal/base/config"
)

// A handler whose shim is named by its path had another runc, in another directory, than the one
// that berth brings along, and lost the output that was written while berth was away.
func TestAHandlerOfRuncsShimGetsWhatBerthBringsAlong(t *testing.T) {
	libexec := t.TempDir()
	logger := filepath.Join(libexec, "berth-logger")
	if err := os.WriteFile(logger, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	b := base{libexec: libexec}
	b.cfg.State = "/state"
	b.cfg.Tricks.KeepOutput = true
	b.cfg.Runtimes = map[string]config.Runtime{
		"runc": {Type: "io.containerd.runc.v2"},
		"path": {Type: "/opt/bin/containerd-shim-runc-v2"},
		"own":  {Type: "/opt/bin/containerd-shim-runc-v2", Binary: "/opt/bin/crun", Root: "/run/crun"},
		"vm":   {Type: "io.containerd.kata.v2"},
	}
	handlers, err := b.makeHandlers()
	if err != nil {
		t.Fatal(err)
	}
	runc := filepath.Join(libexec, "runc")
	for name, want := range map[string][3]string{
		"runc": {runc, "/state/runc", logger},
		"path": {runc, "/state/runc", logger},
		"own":  {"/opt/bin/crun", "/run/crun", logger},
		"vm":   {},
	} {
		h := handlers[name]
		if got := [3]string{h.Binary, h.Root, h.Logger}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	b.cfg.Tricks.KeepOutput = false
	if handlers, err = b.makeHandlers(); err != nil || handlers["runc"].Logger != "" {
		t.Errorf("berth-logger is used although tricks.keep_output is off: %q, %v", handlers["runc"].Logger, err)
	}
}

func TestContainerdTakesUpItsTasksWhereTheyAreNotSetAside(t *testing.T) {
	b := base{cfg: config.Default(), log: &asynclog.Log{Logger: slog.New(slog.DiscardHandler)}}
	if b.embedConfig().LeaveTasks {
		t.Error("tasks are left although tricks.set_aside is on")
	}
	b.cfg.Tricks.SetAside = false
	if !b.embedConfig().LeaveTasks {
		t.Error("tasks are set aside although tricks.set_aside is off")
	}
}
