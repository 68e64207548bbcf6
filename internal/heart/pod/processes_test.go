// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// askedInVain plays a test for each error. Every question to the kernel whether a process lives
// fails with it for the berth that next starts, after away, until lift is called.
func askedInVain(t *testing.T, test func(t *testing.T, first *bubble, next func(away func()) (b *bubble, lift func()))) {
	t.Helper()
	for _, why := range world.InVain {
		t.Run(why.Error(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				test(t, b, func(away func()) (*bubble, func()) {
					loaded := b.kill()
					away()
					return restartInVain(t, b.World, loaded, why)
				})
			})
		})
	}
}

func restartInVain(t *testing.T, w *world.World, loaded state.Loaded, why error) (*bubble, func()) {
	t.Helper()
	lift := w.Refuse("watch", "", why)
	return restart(t, w, loaded), lift
}

// PROPERTIES 33: a container ended while berth was away, its shim is there and has the code, and
// the kernel cannot be asked. It was RUNNING for ever, and could be neither stopped nor removed.
func TestACodeThatTheShimHasCountsWhileTheKernelCannotBeAsked(t *testing.T) {
	askedInVain(t, func(t *testing.T, first *bubble, next func(away func()) (*bubble, func())) {
		p := first.pod("p1", "")
		c, later := first.run(p, "c1"), first.run(p, "c2")
		b, _ := next(func() { first.exit(c, 42) })
		b.expect(c, exited, 42, "Error")
		b.expect(later, running, 0, "")
		b.exit(later, 7) // its shim publishes that, and may be about another process than its own
		time.Sleep(5 * time.Second)
		b.expect(later, exited, 7, "Error")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.StopPodSandbox(ctx, p); err != nil {
			t.Error(err)
		}
		if err := b.RemovePodSandbox(ctx, p); err != nil {
			t.Error(err)
		}
		b.expectLeft(nil)
	})
}

// PROPERTIES 33: the shim has died, and containerd reports 137 for a process that lives. That is
// not believed either while the kernel cannot be asked.
func TestADeadShimIsNotBelievedWhileTheKernelCannotBeAsked(t *testing.T) {
	askedInVain(t, func(t *testing.T, first *bubble, next func(away func()) (*bubble, func())) {
		p := first.pod("p1", "")
		c := first.run(p, "c1")
		b, lift := next(func() {})
		b.KillShim(p)
		time.Sleep(time.Hour)
		b.expect(c, running, 0, "")
		lift()
		time.Sleep(5 * time.Second)
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// PROPERTIES 33: the same of a process that is watched.
func TestAWatchedProcessThatCannotBeLookedAtIsNotGone(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		lift := b.Refuse("look", "", unix.ENOMEM)
		b.KillShim(p)
		time.Sleep(time.Hour)
		b.expect(c, running, 0, "")
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
		lift()
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Error(err)
		}
		b.expectLeft(nil)
	})
}

// PROPERTIES 33: a start took effect, berth was killed before that was on record, and the process
// cannot be identified for a while. It is adopted afterwards, with the start time by which it is
// known again, and a start that is asked for meanwhile waits.
func TestAStartIsAdoptedOnceItsProcessCanBeIdentified(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		for _, why := range world.InVain {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.create(b.pod("p1", ""), ctr("c1"))
				backup := b.Records()
				release := b.HoldAnswer("start-task", c)
				go func() { _ = b.StartContainer(context.WithoutCancel(t.Context()), c) }()
				synctest.Wait()
				loaded := b.kill()
				release()
				if !recorded {
					loaded = backup
				}
				again, lift := restartInVain(t, b.World, loaded, why)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_ = again.StartContainer(ctx, c)
				if b.Process(c).Ended || b.Calls("create-task", c) != 1 {
					t.Error("it was taken for one that was not started")
				}
				lift()
				time.Sleep(2 * time.Minute)
				again.expect(c, running, 0, "")
				if again.Unit(c).Now().Process.StartTicks == 0 {
					t.Error("the start time of its process is not on record")
				}
				again.exit(c, 42)
				synctest.Wait()
				again.expect(c, exited, 42, "Error")
			})
		}
	}
}

// PROPERTIES 20: the number of an ended process may be another's by now. A debug container joins
// the PID namespace of its target by such a number, and was once in the host's.
func TestADebugContainerDoesNotJoinTheNamespaceOfAnotherProcess(t *testing.T) {
	for name, before := range map[string]func(b *bubble, target string){
		"it has ended":            func(b *bubble, target string) { b.exit(target, 0); synctest.Wait() },
		"it has ended just now":   func(b *bubble, target string) { b.exitUnseen(target, 0) },
		"it is removed":           func(b *bubble, target string) { _ = b.RemoveContainer(b.t.Context(), target) },
		"the kernel does not say": func(b *bubble, _ string) { b.Refuse("look", "", unix.ENOMEM) },
		"it has another process":  func(b *bubble, target string) { anotherProcess(b, target) },
		"it lives":                nil,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", "")
				target := b.run(p, "c1")
				cfg := ctr("debug")
				ns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
				ns.Pid, ns.TargetId = runtimeapi.NamespaceMode_TARGET, target
				c := b.create(p, cfg)
				release := b.HoldAnswer("create-task", c)
				started := make(chan error, 1)
				go func() { started <- b.StartContainer(t.Context(), c) }()
				synctest.Wait()
				if before != nil {
					before(b, target)
				}
				release()
				err := <-started
				if before == nil {
					if err != nil || b.Calls("start-task", c) != 1 {
						t.Errorf("it was not started: %v", err)
					}
					return
				}
				if !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) || b.Calls("start-task", c) != 0 {
					t.Errorf("it was started: %v", err)
				}
				b.Heal()
				time.Sleep(time.Minute)
				b.expect(c, exited, 128, "StartError")
				if err := b.RemovePodSandbox(t.Context(), p); err != nil {
					t.Error(err)
				}
				b.expectLeft(nil)
			})
		})
	}
}

// anotherProcess gives a container another process than it had when its debug container was
// created.
func anotherProcess(b *bubble, id string) {
	p := b.Unit(id).Now().Process
	p.Pid += 1000
	b.Unit(id).SetProcess(p)
}

// Whoever found a container before its removal asked about its process after it: the kernel watched
// that for ever, and the service manager kept its pidfd, where nobody had reaped it.
func TestNothingThatIsRemovedIsWatched(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Unreaped, b.Keeper = true, true
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		found := []*pod.Unit{b.Unit(p), b.Unit(c)}
		b.KillShim(p)
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		for _, u := range found {
			b.Observe(u)
			if b.Watched(u.ID()) {
				t.Errorf("the process of %s is watched", u.ID())
			}
		}
	})
}
