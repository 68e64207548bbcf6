// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
)

// PROPERTIES 17: berth serves from the records while containerd answers nothing.
func TestRestoredUnitsAreServedBeforeContainerdAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		loaded := b.kill()
		release := b.Hold("list-containers", "")
		again := start(t, b.World, loaded)
		go func() { _ = again.Relist(t.Context()) }()
		synctest.Wait()
		again.expect(c, running, 0, "")
		again.exit(c, 42) // the kernel watches it again
		time.Sleep(time.Second)
		again.expect(c, exited, 42, "Error")
		release()
		synctest.Wait()
	})
}

// berth is killed while it makes a sandbox, and the process ends before berth is back. The kernel
// reports that end; the sandbox is undone all the same, and does not stay as one that has run.
func TestACreationThatWasCutOffIsUndoneThoughItsProcessEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.HoldAnswer("start-task", "")
		go func() { _, _ = b.RunPodSandbox(t.Context(), config("p1"), "") }()
		synctest.Wait()
		loaded := b.kill()
		b.Heal()
		p := loaded.Sandboxes[0].ID
		b.exit(p, 137)
		again := start(t, b.World, loaded)
		again.Exited(exit.Fact{ID: p, Code: 137, Measured: true, At: clock.Stamped(time.Now()), Origin: exit.Kernel})
		synctest.Wait()
		if err := again.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if l := again.ListPodSandbox(nil); len(l) != 0 {
			t.Errorf("left: %v", l)
		}
		again.expectLeft(nil)
	})
}

// PROPERTIES 4: nobody ever learnt of a container whose creation a kill of berth has cut off, and
// nobody sees it end. A kubelet would take it for a program that ended with 128, and fail the pod
// of a Job.
func TestAContainerWhoseCreationWasCutOffIsNeverSeen(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		before := b.Left()
		b.HoldAnswer("create-container", "")
		go func() { _, _ = b.CreateContainer(t.Context(), p, ctr("c1")) }()
		synctest.Wait()
		loaded := b.kill()
		b.Heal()
		release := b.Hold("remove-snapshot", "") // what was made is not given back so soon
		again := start(t, b.World, loaded)
		if err := again.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(loaded.Containers) != 1 {
			t.Fatalf("%d containers are on record", len(loaded.Containers))
		}
		c := loaded.Containers[0].ID
		if l := again.ListContainers(nil); len(l) != 0 {
			t.Errorf("listed: %v", l)
		}
		if st, err := again.ContainerStatus(t.Context(), c, false); !errdefs.IsNotFound(err) {
			t.Errorf("its status is %v, %v", st, err)
		}
		release()
		synctest.Wait()
		time.Sleep(time.Minute)
		again.expectLeft(before)
	})
}
