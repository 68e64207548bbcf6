// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// PROPERTIES 6: a shim that stays is killed, also where no attempt of a release has as much time as
// a shim. With attempts of a second it was waited for for ever.
func TestAShimThatStaysIsKilledThoughEveryAttemptIsShort(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "3600")
	try(t, cmd.Start())
	gone := make(chan struct{})
	go func() { _ = cmd.Wait(); close(gone) }()
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	try(t, err)
	s := node()
	s.put(thisID, shim{pid: cmd.Process.Pid, fd: fd})

	short := shimTimeout / 10
	for attempt := 0; ; attempt++ {
		if attempt == 100 {
			t.Fatalf("the shim is still waited for after %d attempts of %v", attempt, short)
		}
		ctx, cancel := context.WithTimeout(t.Context(), short)
		err := s.End(ctx, thisID)
		cancel()
		if err == nil {
			break
		}
	}
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the shim was given up and has not ended")
	}
	if s.Knows(thisID) {
		t.Error("the shim is still known")
	}
}
