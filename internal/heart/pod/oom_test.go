// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/test/world"
)

// podInSlice runs a pod whose containers are in systemd's scopes, in a slice of the pod.
func (b *bubble) podInSlice() string {
	b.t.Helper()
	cfg := config("p1")
	cfg.Linux.CgroupParent = "/kubepods.slice/kubepods-pod1.slice"
	id, err := b.RunPodSandbox(b.t.Context(), cfg, "scopes")
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

// vanish takes the group of a container away, as systemd does once a scope is empty, and kills the
// container.
func (b *bubble) vanish(id string) {
	b.t.Helper()
	b.Refuse("oom", world.CgroupOf(id), errdefs.ErrNotFound)
	b.exit(id, 137)
	synctest.Wait()
}

// PROPERTIES 10: systemd removes the group of a scope before anybody read its counter, and the shim
// has not read it either. The pod's group counted, and what other containers of the pod counted is
// not taken for this one's.
func TestAnOOMKillInAScopeThatVanishedIsThePodsToTell(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.podInSlice()
		earlier, child := b.run(p, "earlier"), b.run(p, "child")
		b.OOM(earlier) // before the others run
		b.OOM(child)   // it goes on, since it was not its init
		killed, plain := b.run(p, "killed"), b.run(p, "plain")
		b.OOM(child)
		b.OOM(killed)
		b.vanish(killed)
		b.vanish(plain)
		b.vanish(earlier)
		b.expect(killed, exited, 137, "OOMKilled")
		b.expect(plain, exited, 137, "Error")
		b.expect(earlier, exited, 137, "OOMKilled")
		b.expect(child, running, 0, "")
		again := b.run(p, "again")
		b.vanish(again)
		b.expect(again, exited, 137, "Error")
	})
}

// The next berth knows what the pod's group had counted before the container ran.
func TestAnOOMKillInAScopeWhileBerthWasAwayIsThePodsToTell(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.podInSlice()
		before := b.run(p, "before")
		b.OOM(before)
		b.vanish(before)
		killed, plain := b.run(p, "killed"), b.run(p, "plain")
		records := b.kill()
		b.OOM(killed)
		b.vanish(killed)
		b = restart(t, b.World, records)
		b.vanish(plain)
		b.expect(before, exited, 137, "OOMKilled")
		b.expect(killed, exited, 137, "OOMKilled")
		b.expect(plain, exited, 137, "Error")
	})
}

// A group that pods share says nothing about one of them, and where the group of a process does not
// vanish nobody asks for another.
func TestASharedGroupIsNotAskedForOOMKills(t *testing.T) {
	for _, handler := range []string{"runc", "scopes"} {
		t.Run(handler, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", handler)
				other, plain := b.run(p, "other"), b.run(p, "plain")
				b.Refuse("oom", world.CgroupOf(other), errdefs.ErrNotFound) // before the kill can be noticed
				b.OOM(other)
				b.vanish(other)
				b.vanish(plain)
				b.expect(other, exited, 137, "Error")
				b.expect(plain, exited, 137, "Error")
			})
		})
	}
}

// PROPERTIES 10: the OOM killer ends a process while berth's own kill is on its way and comes too
// late. The end is reported once that is known, and is not taken back.
func TestAKillOnItsWayLeavesTheVerdictOpen(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		release := b.Hold("signal", c)
		stopped := make(chan error, 1)
		go func() { stopped <- b.StopContainer(t.Context(), c, 0) }()
		synctest.Wait()
		b.Exit(c, 137, true)
		synctest.Wait()
		b.expect(c, running, 0, "")
		release()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		b.expect(c, exited, 137, "OOMKilled")
	})
}

// PROPERTIES 10: a cgroup that vanished with its container says nothing. What containerd reported
// counts then; a counter of 0 is an answer.
func TestAVanishedCgroupIsNotTakenForNoOOMKill(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		gone, plain, late := b.run(p, "gone"), b.run(p, "plain"), b.run(p, "late")
		b.Refuse("oom", world.CgroupOf(gone), errdefs.ErrNotFound)
		b.Refuse("oom", world.CgroupOf(late), errdefs.ErrNotFound)
		b.OOMKilled(gone)
		b.OOMKilled(plain)
		b.exit(gone, 137)
		b.exit(plain, 137)
		b.exit(late, 137)
		synctest.Wait()
		b.expect(gone, exited, 137, "OOMKilled")
		b.expect(plain, exited, 137, "Error")
		b.expect(late, exited, 137, "Error")
		b.OOMKilled(plain)
		b.OOMKilled(late) // containerd reports it after the end
		synctest.Wait()
		b.expect(plain, exited, 137, "Error")
		b.expect(late, exited, 137, "OOMKilled")
	})
}

// PROPERTIES 10.
func TestOOMVerdicts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		killed, plain, fine, stopped := b.run(p, "killed"), b.run(p, "plain"), b.run(p, "fine"), b.run(p, "stopped")
		b.OOM(killed)
		b.OOM(fine)
		b.OOM(stopped)
		b.exit(killed, 137)
		b.exit(plain, 137)
		b.exit(fine, 0)
		if err := b.StopContainer(t.Context(), stopped, 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.expect(killed, exited, 137, "OOMKilled")
		b.expect(plain, exited, 137, "Error")
		b.expect(fine, exited, 0, "Completed")
		b.expect(stopped, exited, 137, "Error") // it was berth that killed it
	})
}

// PROPERTIES 10 and 33: the group of a process could not be read when it was made. An OOM kill in
// it was reported as an Error.
func TestAnOOMKillIsFoundInAGroupThatCouldNotBeRead(t *testing.T) {
	for _, why := range world.InVain {
		inBubble(t, func(t *testing.T, b *bubble) {
			p := b.pod("p1", "")
			lift := b.Refuse("cgroup", "", why)
			c := b.run(p, "c1")
			lift()
			b.Exit(c, 137, true)
			synctest.Wait()
			b.expect(c, exited, 137, "OOMKilled")
		})
	}
}

// PROPERTIES 10 and 33: the counter of OOM kills could not be read for a moment, just when a
// container ended, and the end was reported as an Error. It is waited for, but not for long, and
// read again before its group is removed; that the group is not there any more needs no wait.
func TestACounterOfOOMKillsThatCannotBeReadIsReadAgain(t *testing.T) {
	for _, why := range world.InVain {
		inBubble(t, func(t *testing.T, b *bubble) {
			p := b.pod("p1", "")
			for name, silent := range map[string]time.Duration{"c1": 200 * time.Millisecond, "c2": 5 * time.Second} {
				c := b.run(p, name)
				lift := b.Refuse("oom", "", why)
				b.Exit(c, 137, true)
				time.Sleep(silent)
				if silent > time.Second {
					b.expect(c, exited, 137, "Error") // the truth does not wait
				}
				lift()
				time.Sleep(10 * time.Second)
				b.expect(c, exited, 137, "OOMKilled")
			}
			c := b.run(p, "c3")
			b.Refuse("oom", "", why)
			b.Exit(c, 137, true)
			if err := b.RemovePodSandbox(t.Context(), p); err != nil {
				t.Error(err)
			}
			b.expectLeft(nil)
		})
	}
}
