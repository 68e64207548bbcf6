// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/state"
)

// PROPERTIES 18: the state disk is full for ten minutes, then there is room. The exit is visible
// within two seconds, and does not wait in the back-off of earlier attempts.
func TestSettlingDoesNotWaitInALongBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		w.set(func() { w.fail["commit "+c] = errors.New("no space left on device") })
		b.exit(c, 42, true)
		time.Sleep(10 * time.Minute)
		b.expect(c, running, 0, "")
		w.set(func() { delete(w.fail, "commit "+c) })
		time.Sleep(2 * time.Second)
		b.expect(c, exited, 42, "Error")
	})
}

// A stop that arrives while an exit waits to be settled has it settled at once.
func TestAStopHasAWaitingExitSettledNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		w.set(func() { w.fail["commit "+c] = errors.New("no space left on device") })
		b.exit(c, 42, true)
		time.Sleep(time.Minute + 300*time.Millisecond)
		w.set(func() { delete(w.fail, "commit "+c) })
		began := time.Now()
		if err := b.StopContainer(t.Context(), c, time.Minute); err != nil || time.Since(began) != 0 {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
	})
}

// PROPERTIES 17: berth serves from the records while containerd answers nothing.
func TestRestoredUnitsAreServedBeforeContainerdAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		loaded := b.records()
		b.stop()
		w.set(func() { clear(w.watched); w.block["inventory"] = make(chan struct{}) })
		again := startWith(t, w, loaded)
		go func() { _ = again.Relist(t.Context()) }()
		synctest.Wait()
		again.expect(c, running, 0, "")
		again.exit(c, 42, true) // the kernel watches it again
		time.Sleep(time.Second)
		again.expect(c, exited, 42, "Error")
		w.set(func() { close(w.block["inventory"]); delete(w.block, "inventory") })
		synctest.Wait()
	})
}

// PROPERTIES 2 and 17: tasks that nobody but their shims can speak for do not answer. The audit
// finds the end of a process that the kernel sees all the same.
func TestTasksThatDoNotAnswerHideNoExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		vm := b.pod("vm", "vm")
		for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
			b.run(vm, name)
		}
		c := b.run(b.pod("p1", ""), "c1")
		hang := make(chan struct{})
		w.set(func() { w.block["task-state"] = hang; w.did = nil })
		b.exit(c, 42, false)
		time.Sleep(5 * time.Second)
		b.expect(c, exited, 42, "Error")
		close(hang)
		w.set(func() {
			asked := map[string]int{}
			for _, d := range w.did {
				if strings.HasPrefix(d, "task-state ") {
					asked[d]++
				}
			}
			for id, n := range asked {
				if n != 1 {
					t.Errorf("%s: %d questions at once", id, n)
				}
			}
			if len(asked) < 27 {
				t.Errorf("only %d tasks were asked", len(asked))
			}
		})
	})
}

// A creation that hangs does not hold up the stop of its pod, nor the pod's network.
func TestAStopOfAPodInterruptsCreationsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		w.set(func() { w.block["create-snapshot"] = make(chan struct{}) })
		created := make(chan error, 1)
		go func() {
			_, err := b.CreateContainer(t.Context(), p, ctr("c1"))
			created <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := b.StopPodSandbox(t.Context(), p); err != nil || time.Since(began) > time.Second {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
		if err := <-created; !errdefs.IsFailedPrecondition(err) {
			t.Errorf("the creation ended with %v", err)
		}
		synctest.Wait()
		w.set(func() {
			if len(w.cni) != 0 {
				t.Error("the network is held")
			}
		})
		if l := b.ListContainers(nil); len(l) != 0 {
			t.Errorf("left: %v", l)
		}
	})
}

// A removal that arrives while the last step of a creation is being committed is not lost.
func TestARemovalDuringACreationTakesEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		hang := make(chan struct{})
		w.set(func() { w.block["create-container"] = hang })
		created := make(chan error, 1)
		go func() {
			_, err := b.CreateContainer(t.Context(), p, ctr("c1"))
			created <- err
		}()
		synctest.Wait()
		c := b.units.allContainers()[0]
		if err := markRemoving(c); err != nil {
			t.Fatal(err)
		}
		close(hang)
		if err := <-created; !errdefs.IsFailedPrecondition(err) {
			t.Errorf("created: %v", err)
		}
		<-c.removed
		w.set(func() {
			if w.objects["container/"+c.id] || w.objects["snapshot/"+c.id] {
				t.Errorf("left: %v", w.objects)
			}
		})
	})
}

// A removal whose caller gives up is on record, says what it waits for, and goes on by itself.
func TestARemovalThatHangsIsOnRecordAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		hang := make(chan struct{})
		w.set(func() { w.block["delete-task "+c] = hang })
		b.exit(c, 42, true)
		time.Sleep(2 * time.Second) // the release is at it
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := b.RemoveContainer(ctx, c)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still releasing task") {
			t.Errorf("it says: %v", err)
		}
		u, _ := b.units.get(c)
		if !u.now().Removing {
			t.Error("the removal is not on record")
		}
		close(hang)
		time.Sleep(time.Minute)
		if _, ok := b.units.get(c); ok {
			t.Error("it did not go on")
		}
	})
}

// PROPERTIES 21: a delete that takes 30 s ends, though the first attempts are cut off.
func TestASlowDeleteIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		w.set(func() { w.slow["delete-task "+c] = 30 * time.Second })
		b.exit(c, 42, true)
		time.Sleep(5 * time.Minute)
		if w.task(c) != nil {
			t.Errorf("not deleted after %d attempts", w.count("delete-task "+c))
		}
	})
}

// Whoever asked for the removal of what runs has gone before it could be killed: the audit goes on.
func TestARemovalOfWhatRunsGoesOnWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		w.set(func() { w.fail["signal "+c] = errors.New("not now") })
		if err := b.RemoveContainer(t.Context(), c); err == nil {
			t.Fatal("it succeeded")
		}
		w.set(func() { clear(w.fail) })
		time.Sleep(10 * time.Second)
		if _, ok := b.units.get(c); ok {
			t.Error("it did not go on")
		}
	})
}

func TestAContainerThatWasStoppedBeforeItsStartCanBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		c, err := b.CreateContainer(t.Context(), b.pod("p1", ""), ctr("c1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.StopContainer(t.Context(), c, 0); err != nil {
			t.Fatal(err)
		}
		b.expect(c, created, 0, "")
		if err := b.StartContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		b.expect(c, running, 0, "")
	})
}

// berth is killed while it makes a task, or before the task is started: the process waits to be
// started. What was made is taken back, the changes in the writable layer too, nothing counts as an
// exit, and a start that is asked for again succeeds, also if it is asked for before berth has
// compared. It is tried again while the shim is still at work on the first one.
func TestAStartThatWasCutOffCanBeAskedForAgain(t *testing.T) {
	for _, block := range []string{"create-task ", "commit ", "start-task "} {
		t.Run(block, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				b := start(t, w)
				p := b.pod("p1", "")
				c, err := b.CreateContainer(t.Context(), p, ctr("c1"))
				if err != nil {
					t.Fatal(err)
				}
				w.set(func() { w.block[block+c] = make(chan struct{}) })
				go func() { _ = b.StartContainer(t.Context(), c) }()
				synctest.Wait()
				loaded := b.records()
				w.set(func() {
					w.fail["start-task"] = errors.New("berth is dead")
					if block == "commit " { // a commit cannot be interrupted
						close(w.block[block+c])
					}
				})
				b.stop()
				w.set(func() { clear(w.block); clear(w.fail); clear(w.watched) })

				again := startWith(t, w, loaded)
				started := make(chan error, 1)
				go func() { started <- again.StartContainer(t.Context(), c) }()
				synctest.Wait()
				select {
				case err := <-started:
					t.Fatalf("started before it was compared: %v", err)
				default:
				}
				disturbed := make(chan struct{})
				w.set(func() {
					w.did = nil
					w.block["create-task "+c], w.fail["create-task "+c] = disturbed, errors.New("the earlier one")
				})
				if err := again.Relist(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				w.set(func() {
					if !slices.Contains(w.did, "renew-snapshot "+c) {
						t.Errorf("the writable layer is as the first start left it: %q", w.did)
					}
					w.did = nil
					clear(w.fail)
					clear(w.block)
				})
				close(disturbed)
				if err := <-started; err != nil {
					t.Fatal(err)
				}
				w.set(func() {
					if !slices.Contains(w.did, "renew-snapshot "+c) {
						t.Errorf("the writable layer is as the disturbed start left it: %q", w.did)
					}
				})
				synctest.Wait()
				again.expect(c, running, 0, "")
				again.exit(c, 42, true)
				synctest.Wait()
				again.expect(c, exited, 42, "Error")
				if err := again.RemovePodSandbox(t.Context(), p); err != nil {
					t.Error(err)
				}
				w.set(func() {
					if len(w.objects)+len(w.tasks) != 0 {
						t.Errorf("left: %v %v", w.objects, w.tasks)
					}
				})
			})
		})
	}
}

// berth is killed while it makes a sandbox, and the process ends before berth is back. The kernel
// reports that end; the sandbox is undone all the same, and does not stay as one that has run.
func TestACreationThatWasCutOffIsUndoneThoughItsProcessEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		w.set(func() { w.block["start-task"] = make(chan struct{}) })
		go func() { _, _ = b.RunPodSandbox(t.Context(), config("p1"), "") }()
		synctest.Wait()
		loaded := b.records()
		p := loaded.Sandboxes[0].ID
		w.set(func() { w.fail["commit"] = errors.New("berth is dead") })
		b.stop()
		w.set(func() { clear(w.fail); clear(w.block); clear(w.watched) })
		b.exit(p, 137, false)
		again := startWith(t, w, loaded)
		again.Exited(exit.Fact{ID: p, Code: 137, Measured: true, At: time.Now(), Origin: exit.Kernel})
		synctest.Wait()
		if err := again.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.set(func() {
			if l := again.ListPodSandbox(nil); len(l)+len(w.objects)+len(w.netns)+len(w.cni)+len(w.tasks) != 0 {
				t.Errorf("left: %v %v %v %v %v", l, w.objects, w.netns, w.cni, w.tasks)
			}
		})
	})
}

// A shim does not answer when berth comes back: whether the start that was cut off took effect is
// found out once it does, long before the next relist. Where the process was on record, the start
// was given up at once.
func TestAShimThatDidNotAnswerAtBootIsAskedAgainSoon(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		t.Run(fmt.Sprint(recorded), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				b := start(t, w)
				c, err := b.CreateContainer(t.Context(), b.pod("p1", ""), ctr("c1"))
				if err != nil {
					t.Fatal(err)
				}
				loaded := b.records()
				w.set(func() { w.block["start-task "+c] = make(chan struct{}) })
				go func() { _ = b.StartContainer(t.Context(), c) }()
				synctest.Wait()
				if recorded {
					loaded = b.records()
				}
				w.set(func() {
					w.fail["start-task"], w.fail["commit"] = errors.New("berth is dead"), errors.New("berth is dead")
				})
				b.stop()
				w.set(func() { clear(w.block); clear(w.fail); clear(w.watched); w.hung = map[string]bool{c: true} })
				again := restart(t, w, loaded)
				began := time.Now()
				started := make(chan error, 1)
				go func() { started <- again.StartContainer(t.Context(), c) }()
				time.Sleep(5 * time.Second)
				w.set(func() { clear(w.hung) })
				if err := <-started; err != nil || time.Since(began) > 20*time.Second {
					t.Errorf("started after %v: %v", time.Since(began), err)
				}
			})
		})
	}
}

// The sandbox's process ended between the creation of a container and its start: the namespaces
// that the spec names by PID may be another process's.
func TestAContainerIsNotStartedInTheNamespacesOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		c, err := b.CreateContainer(t.Context(), p, ctr("c1"))
		if err != nil {
			t.Fatal(err)
		}
		hang := make(chan struct{})
		w.set(func() { w.block["create-task "+c] = hang })
		started := make(chan error, 1)
		go func() { started <- b.StartContainer(t.Context(), c) }()
		synctest.Wait()
		b.exit(p, 0, false) // not settled yet, so that the sandbox is READY still
		close(hang)
		if err := <-started; !errdefs.IsFailedPrecondition(err) {
			t.Errorf("it started: %v", err)
		}
		if n := w.count("start-task " + c); n != 0 {
			t.Errorf("started %d times", n)
		}
		time.Sleep(time.Minute)
		b.expect(c, exited, 128, "StartError")
	})
}

// A change that comes after the deletion of the record would be found at the next boot as a status
// without a record.
func TestNothingIsWrittenAfterTheRecordIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		u, _ := b.units.get(c)
		hang := make(chan struct{})
		b.exit(c, 0, true)
		time.Sleep(time.Second)
		w.set(func() { w.block["commit "+c] = hang })
		go func() { _ = b.RemoveContainer(t.Context(), c) }() // hangs in marking it
		synctest.Wait()
		w.set(func() { delete(w.block, "commit "+c) })
		close(hang)
		<-u.removed
		if err := u.change(func(*state.Status) bool { return true }); !errdefs.IsNotFound(err) {
			t.Errorf("changed: %v", err)
		}
	})
}

// What panics in an operation ends that operation with an error, is undone, and ends nothing else.
func TestAPanicEndsItsCallAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		w.set(func() { w.panics["create-snapshot"] = true })
		if _, err := b.CreateContainer(t.Context(), p, ctr("c1")); !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "create-snapshot") {
			t.Errorf("got %v", err)
		}
		w.set(func() { clear(w.panics) })
		c := b.run(p, "c1")
		c2, err := b.CreateContainer(t.Context(), p, ctr("c2"))
		if err != nil {
			t.Fatal(err)
		}
		w.set(func() { w.panics["start-task"] = true })
		if err := b.StartContainer(t.Context(), c2); !errdefs.IsInternal(err) {
			t.Errorf("got %v", err)
		}
		w.set(func() { clear(w.panics) })
		time.Sleep(time.Minute)
		b.expect(c2, exited, 128, "StartError")
		b.expect(c, running, 0, "")
	})
}

// PROPERTIES 10: a cgroup that vanished with its container says nothing. What containerd reported
// counts then; a counter of 0 is an answer.
func TestAVanishedCgroupIsNotTakenForNoOOMKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		gone, plain := b.run(p, "gone"), b.run(p, "plain")
		group := w.cgroupOf(gone)
		w.set(func() { w.fail["oom "+group] = errdefs.ErrNotFound })
		b.OOMKilled(gone)
		b.OOMKilled(plain)
		b.exit(gone, 137, true)
		b.exit(plain, 137, true)
		synctest.Wait()
		b.expect(gone, exited, 137, "OOMKilled")
		b.expect(plain, exited, 137, "Error")
	})
}

// Evented PLEG takes the first container of each name for the current one.
func TestContainersOfAPodComeNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		sub := b.feed.Subscribe()
		defer sub.Close()
		p := b.pod("p1", "")
		var want []string
		for attempt := range uint32(3) {
			cfg := ctr("c1")
			cfg.Metadata.Attempt = attempt
			c, err := b.CreateContainer(t.Context(), p, cfg)
			if err != nil {
				t.Fatal(err)
			}
			want = append([]string{c}, want...)
			time.Sleep(time.Second)
		}
		resp, err := b.PodSandboxStatus(t.Context(), p, false)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, got []*runtimeapi.ContainerStatus) {
			for i, st := range got {
				if st.GetId() != want[i] {
					t.Errorf("%s: container %d is attempt %d", what, i, st.GetMetadata().GetAttempt())
				}
			}
		}
		check("status", resp.GetContainersStatuses())
		for range 5 {
			ev, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if ev.GetContainerId() == want[0] {
				check("event", ev.GetContainersStatuses())
				return
			}
		}
		t.Error("no event of the last container")
	})
}

// Package cri encodes what it has listed before only once: lists contain the same message for as
// long as nothing has changed.
func TestListsShareWhatHasNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		ctrs, sandboxes := b.ListContainers(nil), b.ListPodSandbox(nil)
		if b.ListContainers(nil)[0] != ctrs[0] || b.ListPodSandbox(nil)[0] != sandboxes[0] {
			t.Error("made anew though nothing has changed")
		}
		b.exit(c, 0, true)
		synctest.Wait()
		if got := b.ListContainers(nil)[0]; got == ctrs[0] || got.GetState() != exited || ctrs[0].GetState() != running {
			t.Errorf("after the end: %v, and before: %v", got.GetState(), ctrs[0].GetState())
		}
		if err := b.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := b.ListPodSandbox(nil)[0]; got == sandboxes[0] || got.GetState() == sandboxes[0].GetState() {
			t.Error("the stop does not show")
		}
	})
}

// The kubelet forgets a pod, by its UID, when the sandbox in the event is reported deleted: the
// event must not name the pod while another sandbox of it lives.
func TestTheDeletionOfAnOldSandboxDoesNotNameItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		sub := b.feed.Subscribe()
		defer sub.Close()
		old := b.pod("p1", "")
		cfg := config("p1")
		cfg.Metadata.Attempt = 1
		current, err := b.RunPodSandbox(t.Context(), cfg, "")
		if err != nil {
			t.Fatal(err)
		}
		for i, id := range []string{old, current} {
			if err := b.RemovePodSandbox(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			for {
				ev, err := sub.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if ev.GetContainerId() != id || ev.GetContainerEventType() != runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
					continue
				}
				if named := ev.GetPodSandboxStatus() != nil; named != (i == 1) {
					t.Errorf("sandbox %d of the pod: named %v", i, named)
				}
				break
			}
		}
	})
}

// Releases wait for a quiet moment, and no longer than a second; what somebody waits for does not.
func TestReleasesLetSettlesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		var cs []string
		for _, name := range strings.Split("abcdefghij", "") {
			cs = append(cs, b.run(p, name))
		}
		w.set(func() { w.did = nil })
		for _, c := range cs {
			b.exit(c, 1, true)
			time.Sleep(30 * time.Millisecond)
		}
		w.set(func() {
			for _, d := range w.did {
				if strings.HasPrefix(d, "delete-task") && d != "delete-task "+cs[0] { // the first came alone
					t.Errorf("a release began between exits: %s", d)
				}
			}
		})
		began := time.Now()
		if err := b.RemoveContainer(t.Context(), cs[1]); err != nil || time.Since(began) != 0 {
			t.Errorf("a removal waited %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Second)
		for _, c := range cs {
			if w.task(c) != nil {
				t.Errorf("%s is not released", c)
			}
		}
	})
}

// A release that hangs keeps its place among the young ones for a second only.
func TestHangingReleasesDoNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		hang := make(chan struct{})
		defer close(hang)
		var wg sync.WaitGroup
		for range 100 {
			c := b.run(p, b.newName())
			w.set(func() { w.block["delete-task "+c] = hang })
			wg.Go(func() { b.exit(c, 1, true) })
		}
		free := b.run(p, "free")
		b.exit(free, 1, true)
		time.Sleep(5 * time.Second)
		if w.task(free) != nil {
			t.Error("not released after 5 s")
		}
		wg.Wait()
	})
}

// A damaged record is left alone until somebody removes it; then everything of its ID goes.
func TestADamagedRecordCanBeRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		loaded := b.records()
		b.stop()
		loaded.Damaged = []state.Damaged{{
			Kind:      state.KindContainer,
			ID:        c,
			Err:       errors.New("unreadable"),
			Container: state.Container{ID: c, PodID: p, Config: &runtimeapi.ContainerConfig{}},
		}}
		loaded.Containers = nil
		w.set(func() { clear(w.watched) })
		again := restart(t, w, loaded)
		time.Sleep(time.Hour)
		if w.task(c) == nil {
			t.Fatal("what belongs to a damaged record was reaped unasked")
		}
		again.expect(c, runtimeapi.ContainerState_CONTAINER_UNKNOWN, 0, "RecordDamaged")
		if l := again.ListContainers(&runtimeapi.ContainerFilter{PodSandboxId: p}); len(l) != 1 || l[0].GetId() != c {
			t.Errorf("listed: %v", l)
		}
		if err := again.RemoveContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if w.task(c) != nil || w.objects["container/"+c] || w.objects["snapshot/"+c] {
			t.Errorf("left: %v", w.objects)
		}
	})
}
