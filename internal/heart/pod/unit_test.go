// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/heart/state"
)

// A change that comes after the deletion of the record would be found at the next boot as a status
// without a record.
func TestNothingIsWrittenAfterTheRecordIsDeleted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		u := b.Unit(c)
		b.exit(c, 0)
		time.Sleep(time.Second)
		release := b.Hold("commit", c)
		go func() { _ = b.RemoveContainer(t.Context(), c) }() // hangs in marking it
		synctest.Wait()
		release()
		<-u.Removed()
		if err := u.Change(func(*state.Status) bool { return true }); !errdefs.IsNotFound(err) {
			t.Errorf("changed: %v", err)
		}
	})
}
