// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/asynclog"
	"berth/internal/config"
	"berth/internal/state"
)

// PROPERTIES 33: another containerd does not know the pods, which is not an answer. It is used once they
// are removed, after a reboot, which has ended them, and when an operator has said that the one before is
// gone. What cannot be found out about it keeps berth from none.
func TestAnotherContainerdIsNotUsedWhileThereArePods(t *testing.T) {
	d := &daemon{cfg: config.Config{Root: t.TempDir()}, log: &asynclog.Log{Logger: slog.New(slog.DiscardHandler)}}
	meets := func(uuid string, units int, want bool) {
		t.Helper()
		err := d.meets(uuid, units)
		if (err == nil) != want {
			t.Fatalf("%s, with %d on record: %v", uuid, units, err)
		}
		if err != nil && (!errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), state.ContainerdFile(d.cfg.Root))) {
			t.Errorf("the error does not say what to do: %v", err)
		}
	}
	meets("a", 3, true) // pods of a berth that did not note it
	meets("b", 3, false)
	meets("", 3, true) // one without a UUID
	meets("a", 3, true)
	meets("b", 0, true)
	meets("a", 1, false)
	if err := (state.Containerd{UUID: "b", Boot: "an earlier one"}).Note(d.cfg.Root); err != nil {
		t.Fatal(err)
	}
	meets("a", 1, true)
	meets("b", 1, false)
	if err := os.Remove(state.ContainerdFile(d.cfg.Root)); err != nil {
		t.Fatal(err)
	}
	meets("b", 1, true)
	if err := os.WriteFile(state.ContainerdFile(d.cfg.Root), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	meets("c", 1, true)
}
