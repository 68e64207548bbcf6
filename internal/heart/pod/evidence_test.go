// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"testing"
	"testing/synctest"
)

// PROPERTIES 10: a kill that is on its way to a process that the OOM killer has ended before is not
// what ended it.
func TestAKillThatComesTooLateDoesNotExplainAnEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		records := b.kill()
		b.Exit(c, 137, true)
		compare := b.Hold("list-tasks", "")
		b = start(t, b.World, records)
		relisted := make(chan error, 1)
		go func() { relisted <- b.Relist(t.Context()) }()
		synctest.Wait()
		killed := b.Hold("kill-task", c)
		stopped := make(chan error, 1)
		go func() { stopped <- b.StopContainer(t.Context(), c, 0) }()
		synctest.Wait()
		compare()
		synctest.Wait()
		b.expect(c, exited, 137, "OOMKilled")
		killed()
		if err := errors.Join(<-relisted, <-stopped); err != nil {
			t.Error(err)
		}
		b.expect(c, exited, 137, "OOMKilled")
	})
}
