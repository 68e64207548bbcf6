// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// PROPERTIES 6: a process that was to keep streams, and whose cgroup could not be marked as one that
// lives on, ran on all the same, and stayed as a zombie once it had ended. Nobody counted it.
func TestAHolderThatCannotLiveOnIsEnded(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	why := errors.New("the cgroup cannot be marked")
	if err := (holders{}).follow(cmd, func() error { return why }); !errors.Is(err, why) {
		t.Errorf("it was followed: %v", err)
	}
	if err := unix.Kill(cmd.Process.Pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d is left: %v", cmd.Process.Pid, err)
		_ = cmd.Process.Kill()
	}
}
