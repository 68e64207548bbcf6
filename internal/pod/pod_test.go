// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	exited  = runtimeapi.ContainerState_CONTAINER_EXITED
	created = runtimeapi.ContainerState_CONTAINER_CREATED
)

func TestAnExitIsDurableBeforeAnyCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		b.set(func() { b.did = nil })
		b.exit(c, 42, true)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
		time.Sleep(time.Second)
		b.set(func() {
			if i, j := slices.Index(b.did, "commit "+c), slices.Index(b.did, "delete-task "+c); i < 0 || j < i {
				t.Errorf("not in order: %v", b.did)
			}
		})
	})
}

// PROPERTIES 1 and 3: deletes that hang for ever hold up nothing else.
func TestDeletesThatHangDelayNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		wedge := make(chan struct{})
		var wedged []string
		for i := range 50 {
			c := b.run(p, fmt.Sprint("w", i))
			wedged = append(wedged, c)
			w.set(func() { w.block["delete-task "+c] = wedge })
		}
		for _, c := range wedged {
			b.exit(c, 1, true)
		}
		began := time.Now()
		c := b.run(p, "free")
		b.exit(c, 7, true)
		synctest.Wait()
		b.expect(c, exited, 7, "Error")
		for _, c := range wedged {
			b.expect(c, exited, 1, "Error")
		}
		if err := b.RemoveContainer(t.Context(), c); err != nil || time.Since(began) != 0 {
			t.Errorf("the 51st waited %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.RemoveContainer(ctx, wedged[0]); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(wedge)
		for _, c := range wedged {
			if err := b.RemoveContainer(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	})
}

// PROPERTIES 2: no witness reports it; the audit finds it within 5 s.
func TestAnExitThatNoWitnessReportedIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		c := b.run(b.pod("p1", ""), "c1")
		b.exit(c, 42, false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

func TestAShimThatReportsTheEndOfALivingProcessIsDoubted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		c := b.run(b.pod("p1", ""), "c1")
		// The shim died; containerd's clean-up claims 137.
		b.Exited(exit.Fact{ID: c, Code: 137, Measured: true, At: time.Now(), Origin: exit.Stream})
		time.Sleep(time.Minute)
		b.expect(c, running, 0, "")
		b.exit(c, 42, true)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

func TestEveryWitnessAtOnceSettlesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		sub := b.feed.Subscribe()
		defer sub.Close()
		c := b.run(b.pod("p1", ""), "c1")
		var wg sync.WaitGroup
		for _, o := range []exit.Origin{exit.Task, exit.Stream, exit.Audit, exit.Task, exit.Stream} {
			wg.Go(func() {
				b.Exited(exit.Fact{ID: c, Code: 42, Measured: o != exit.Audit, At: time.Now(), Origin: o})
			})
		}
		wg.Go(func() { b.exit(c, 42, true) })
		wg.Wait()
		time.Sleep(time.Minute)
		b.expect(c, exited, 42, "Error")
		stops := 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for {
			ev, err := sub.Next(ctx)
			if err != nil {
				break
			}
			if ev.GetContainerId() == c && ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				stops++
			}
		}
		if stops != 1 {
			t.Errorf("STOPPED was published %d times", stops)
		}
	})
}

// An older kernel knows that the process ended; the code comes from the shim.
func TestTheShimSuppliesTheCodeThatTheKernelLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.exact = false
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		b.exit(c, 42, true)
		time.Sleep(100 * time.Millisecond)
		b.expect(c, exited, 42, "Error")
	})
}

func TestACodeThatNobodyMeasuredIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.exact = false
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		w.set(func() { w.fail["task-state"] = errdefs.ErrNotFound; w.tasks[c].ended = true })
		b.Exited(exit.Fact{ID: c, At: time.Now(), Origin: exit.Kernel})
		time.Sleep(2 * time.Second)
		b.expect(c, exited, 255, "Unknown")
		// Somebody knows after all: it is corrected, once.
		b.Exited(exit.Fact{ID: c, Code: 42, Measured: true, At: time.Now(), Origin: exit.Task})
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
		b.Exited(exit.Fact{ID: c, Code: 1, Measured: true, At: time.Now(), Origin: exit.Stream})
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// PROPERTIES 10.
func TestOOMVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		oom := func(id string) { w.set(func() { w.oom[fmt.Sprint("cg", w.tasks[id].pid)] = 1 }) }
		killed, plain, fine, stopped := b.run(p, "killed"), b.run(p, "plain"), b.run(p, "fine"), b.run(p, "stopped")
		oom(killed)
		oom(fine)
		oom(stopped)
		b.exit(killed, 137, true)
		b.exit(plain, 137, true)
		b.exit(fine, 0, true)
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

// PROPERTIES 11: no event is published before the disk has it. A full disk is tried again, and
// nothing is lost.
func TestAFullDiskDelaysTheTruthAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c := b.run(b.pod("p1", ""), "c1")
		w.set(func() { w.fail["commit "+c] = errors.New("no space left on device") })
		b.exit(c, 42, true)
		time.Sleep(10 * time.Second)
		b.expect(c, running, 0, "") // what is not durable is not visible
		if n := w.count("delete-task " + c); n != 0 {
			t.Errorf("cleaned up %d times before it was durable", n)
		}
		w.set(func() { delete(w.fail, "commit "+c) })
		time.Sleep(time.Minute)
		b.expect(c, exited, 42, "Error")
	})
}

func TestALogThatIsHeldOpenDelaysTheTruthByItsBoundOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		b.stdios.held = true
		c := b.run(b.pod("p1", ""), "c1")
		began := time.Now()
		b.exit(c, 0, true)
		u, _ := b.units.get(c)
		<-u.settled
		if d := time.Since(began); d != 250*time.Millisecond {
			t.Errorf("settled after %v", d)
		}
	})
}

// PROPERTIES 16.
func TestARetriedCallJoinsTheOneInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		slow := make(chan struct{})
		w.block["cni"] = slow
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.RunPodSandbox(ctx, config("p1"), ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		var ids [2]string
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				var err error
				if ids[i], err = b.RunPodSandbox(t.Context(), config("p1"), ""); err != nil {
					t.Error(err)
				}
			})
		}
		other := config("p1")
		other.Hostname = "other"
		synctest.Wait()
		if _, err := b.RunPodSandbox(t.Context(), other, ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("another configuration: %v", err)
		}
		close(slow)
		wg.Wait()
		if ids[0] != ids[1] || len(b.units.allSandboxes()) != 1 {
			t.Errorf("%v, %d sandboxes", ids, len(b.units.allSandboxes()))
		}
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("a caller that has its answer: %v", err)
		}
	})
}

func TestAResultThatNobodyReceivedGoesToTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		slow := make(chan struct{})
		w.block["cni"] = slow
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = b.RunPodSandbox(ctx, config("p1"), "")
		close(slow)
		synctest.Wait()
		id := b.pod("p1", "")
		if len(b.units.allSandboxes()) != 1 || id != b.units.allSandboxes()[0].id {
			t.Error("a second sandbox was made")
		}
	})
}

// Whichever step fails, everything that was made is undone.
func TestACreationThatFailsLeavesNothing(t *testing.T) {
	for _, op := range []string{"netns", "cni", "create-sandbox", "create-container", "create-task", "start-task"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				b := start(t, w)
				w.set(func() { w.fail[op] = errors.New("it fails") })
				if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
					t.Fatal("it did not")
				}
				w.set(func() {
					if len(w.objects)+len(w.netns)+len(w.cni) != 0 {
						t.Errorf("left: %v %v %v", w.objects, w.netns, w.cni)
					}
				})
				if len(b.units.allSandboxes()) != 0 {
					t.Error("the record is left")
				}
				w.set(func() { clear(w.fail) })
				b.pod("p1", "") // the name is free
			})
		})
	}
}

func TestWhatCannotBeUndoneStaysAndIsFinishedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		w.set(func() { w.fail["start-task"], w.fail["cni-del"] = errors.New("no"), errors.New("no") })
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
			t.Fatal("it did not fail")
		}
		if l := b.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Fatalf("%v", l)
		}
		w.set(func() { clear(w.fail) })
		time.Sleep(10 * time.Minute)
		if len(b.ListPodSandbox(nil)) != 0 || len(w.cni) != 0 {
			t.Error("it was not finished")
		}
	})
}

func TestStopAndRemoveAreIdempotentAndDefined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		ctx := t.Context()
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		never, err := b.CreateContainer(ctx, p, ctr("never"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.StopContainer(ctx, never, 0); err != nil {
			t.Error(err)
		}
		b.expect(never, created, 0, "")
		var wg sync.WaitGroup
		for range 3 { // at once
			wg.Go(func() {
				if err := b.StopContainer(ctx, c, time.Second); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		b.expect(c, exited, 137, "Error")
		if err := b.StartContainer(ctx, c); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("start of the dead: %v", err)
		}
		for range 2 {
			for _, err := range []error{b.RemoveContainer(ctx, never), b.RemovePodSandbox(ctx, p), b.StopPodSandbox(ctx, p), b.StopContainer(ctx, c, 0)} {
				if err != nil {
					t.Error(err)
				}
			}
		}
		w.set(func() {
			if len(w.objects)+len(w.netns)+len(w.cni)+len(w.tasks)+len(w.watched) != 0 {
				t.Errorf("left: %v %v %v %v %v", w.objects, w.netns, w.cni, w.tasks, w.watched)
			}
		})
	})
}

func TestAStopDuringAStartEndsWhatWasStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		c, err := b.CreateContainer(t.Context(), p, ctr("c1"))
		if err != nil {
			t.Fatal(err)
		}
		slow := make(chan struct{})
		w.set(func() { w.block["start-task "+c] = slow })
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.StartContainer(t.Context(), c) })
		synctest.Wait()
		wg.Go(func() {
			if err := b.StopContainer(t.Context(), c, 0); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(slow)
		wg.Wait()
		b.expect(c, exited, 137, "Error")
	})
}

func TestAnExitDuringTheStartIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c, err := b.CreateContainer(t.Context(), b.pod("p1", ""), ctr("c1"))
		if err != nil {
			t.Fatal(err)
		}
		slow := make(chan struct{})
		w.set(func() { w.block["start-task "+c] = slow })
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.StartContainer(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		b.exit(c, 3, true)
		synctest.Wait()
		b.expect(c, exited, 3, "Error") // before the start has returned
		if n := w.count("delete-task " + c); n != 0 {
			t.Errorf("deleted %d times under the start", n)
		}
		close(slow)
		wg.Wait()
		b.expect(c, exited, 3, "Error")
		time.Sleep(time.Minute)
		if w.task(c) != nil {
			t.Error("the task was not released")
		}
	})
}

func TestAVMRuntimeIsWitnessedByItsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		c := b.run(b.pod("p1", "vm"), "c1")
		b.exit(c, 42, true)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// The disk is full when a creation is given up: nothing may be left, once there is room again.
func TestACreationGivenUpOnAFullDiskIsUndoneLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		w.block["cni"] = make(chan struct{})
		ended := make(chan error)
		go func() {
			_, err := b.RunPodSandbox(t.Context(), config("p1"), "")
			ended <- err
		}()
		synctest.Wait()
		w.set(func() {
			w.fail["commit"], w.fail["start-task"] = errors.New("no space left on device"), errors.New("no")
		})
		close(w.block["cni"])
		if err := <-ended; err == nil {
			t.Fatal("it did not fail")
		}
		w.set(func() { clear(w.fail) })
		time.Sleep(10 * time.Minute)
		w.set(func() {
			if len(b.ListPodSandbox(nil))+len(w.objects)+len(w.netns)+len(w.cni)+len(w.tasks) != 0 {
				t.Errorf("left: %v %v %v %v", w.objects, w.netns, w.cni, w.tasks)
			}
		})
	})
}

func TestRequestsAreRefusedWhileBerthStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		c, err := b.CreateContainer(t.Context(), b.pod("p1", ""), ctr("c1"))
		if err != nil {
			t.Fatal(err)
		}
		b.stop()
		if _, err := b.RunPodSandbox(t.Context(), config("p2"), ""); !errdefs.IsUnavailable(err) {
			t.Error(err)
		}
		if err := b.StartContainer(t.Context(), c); !errdefs.IsUnavailable(err) {
			t.Error(err)
		}
	})
}

// The process was made, its start failed, and berth kills what was made: that 137 is not how the
// container ended.
func TestAStartThatFailedIsNotReportedAsAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		c, err := b.CreateContainer(t.Context(), b.pod("p1", ""), ctr("c1"))
		if err != nil {
			t.Fatal(err)
		}
		w.set(func() { w.fail["start-task "+c] = errors.New("no such luck") })
		if err := b.StartContainer(t.Context(), c); err == nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if w.task(c) != nil {
			t.Error("its task is left")
		}
		b.expect(c, exited, 128, "StartError")
	})
}

// Sandboxes of containerd's controllers go the same way: whatever makes them, they are watched,
// stopped, settled, released and recovered by the same lanes.
func TestSandboxersOfContainerds(t *testing.T) {
	for _, handler := range []string{"", "shim", "vmm"} {
		t.Run(handler, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				b := start(t, w)
				p := b.pod("p1", handler)
				b.run(p, "c1")
				u, _ := b.units.get(p)
				if remote := handler != ""; (u.now().Endpoint.Address != "") != remote || w.objects["container/"+p] == remote {
					t.Errorf("endpoint %v, container object %v", u.now().Endpoint, w.objects["container/"+p])
				}
				loaded := b.records()
				b.stop()
				w.set(func() { clear(w.watched) })
				again := restart(t, w, loaded)
				if l := again.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
					t.Fatalf("after a restart: %v", l)
				}
				w.set(func() { w.fail["delete-task "+p] = errors.New("not now") })
				if err := again.StopPodSandbox(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if l := again.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
					t.Errorf("stopped: %v", l)
				}
				w.set(func() { delete(w.fail, "delete-task "+p) }) // its own lane tries again
				if err := again.RemovePodSandbox(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if len(w.tasks) != 0 || len(w.objects) != 0 || len(w.netns) != 0 || len(w.cni) != 0 {
					t.Errorf("left: %v %v %v %v", w.tasks, w.objects, w.netns, w.cni)
				}
			})
		})
	}
}

func TestAStopOfTheBuiltInSandboxer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "")
		u, _ := b.units.get(p)
		if err := sandboxerOf(b.runtime, u.sandbox.Sandboxer).Stop(t.Context(), p, time.Minute); err != nil { // it ignores the signal
			t.Fatal(err)
		}
		if st, err := sandboxerOf(b.runtime, u.sandbox.Sandboxer).Status(t.Context(), p); err != nil || !st.Stopped || st.Code != 137 {
			t.Errorf("%v %v", st, err)
		}
	})
}

// Every relist finds the same units running: none may get one more listener each time.
func TestARelistAddsNoListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		p := b.pod("p1", "vm")
		c := b.run(p, "c1")
		time.Sleep(time.Hour) // relists at leisure
		for range 10 {
			if err := b.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		w.set(func() {
			if w.waits[p] != 1 || w.waits[c] != 1 {
				t.Errorf("listeners: %v", w.waits)
			}
		})
	})
}
