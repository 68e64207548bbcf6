// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"
)

// publishPatience is how long after an end its publication is waited for before the task is
// deleted.
const publishPatience = 500 * time.Millisecond

// gap is the time between the answer of a shim that a process has ended and its publication of
// that, in which the task is not deleted.
//
// Containerd's shim answers a wait before it publishes the end, and needs the lock of the process
// for that, which a deletion holds for as long as the OCI runtime takes. A deletion in that moment
// holds up everything that the shim is yet to learn of its other processes. When more than 32 have
// ended, its reaper hands on one in a second, and the end of the OCI runtime's own process is the
// last of them: see docs/tricks.md.
type gap struct{ tasks Tasks }

// pass waits until the end of the task of u, which its shim has answered, is published as well. It
// gives up when the shim has had publishPatience for that since the end, and does not wait if a
// publication would not be received.
func (g gap) pass(ctx context.Context, u *unit, st TaskState) {
	// The controller of a sandbox publishes no end of a task, and one without a process has no task.
	if u.isSandbox() && (u.handler.Sandboxer != "" || u.isPinned()) {
		return
	}
	if !g.tasks.Publishes() || u.streamed.Happened() {
		return
	}
	left := publishPatience
	if !st.ExitedAt.IsZero() {
		left = min(publishPatience-u.clock.Since(st.ExitedAt), publishPatience)
	}
	if left <= 0 {
		return
	}
	select {
	case <-u.streamed.Notice():
	case <-time.After(left):
	case <-ctx.Done():
	}
}
