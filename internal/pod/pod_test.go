// SPDX-License-Identifier: Apache-2.0

package pod_test

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
	"berth/internal/pod"
)

func TestAnExitIsDurableBeforeAnyCleanUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		before := len(b.Did())
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
		time.Sleep(time.Second)
		did := b.Did()[before:]
		if i, j := slices.Index(did, "commit "+c), slices.Index(did, "delete-task "+c); i < 0 || j < i {
			t.Errorf("not in order: %v", did)
		}
	})
}

// PROPERTIES 1 and 3: deletes that hang for ever hold up nothing else.
func TestDeletesThatHangDelayNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		var wedged []string
		var release []func()
		for i := range 50 {
			c := b.run(p, fmt.Sprint("w", i))
			wedged = append(wedged, c)
			release = append(release, b.Hold("delete-task", c))
		}
		for _, c := range wedged {
			b.exit(c, 1)
		}
		began := time.Now()
		c := b.run(p, "free")
		b.exit(c, 7)
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
		for _, lift := range release {
			lift()
		}
		for _, c := range wedged {
			if err := b.RemoveContainer(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	})
}

// PROPERTIES 2: no witness reports it; the audit finds it within 5 s.
func TestAnExitThatNoWitnessReportedIsFound(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.exitUnseen(c, 42)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

func TestAShimThatReportsTheEndOfALivingProcessIsDoubted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		// The shim died; containerd's clean-up claims 137.
		b.Exited(exit.Fact{ID: c, Code: 137, Measured: true, At: time.Now(), Origin: exit.Stream})
		time.Sleep(time.Minute)
		b.expect(c, running, 0, "")
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

func TestEveryWitnessAtOnceSettlesOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		sub := b.feed.Subscribe()
		defer sub.Close()
		c := b.run(b.pod("p1", ""), "c1")
		var wg sync.WaitGroup
		for _, o := range []exit.Origin{exit.Task, exit.Stream, exit.Audit, exit.Task, exit.Stream} {
			wg.Go(func() {
				b.Exited(exit.Fact{ID: c, Code: 42, Measured: o != exit.Audit, At: time.Now(), Origin: o})
			})
		}
		wg.Go(func() { b.exit(c, 42) })
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
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Exact, b.ShimDelay = false, 10*time.Millisecond
		c := b.run(b.pod("p1", ""), "c1")
		b.exit(c, 42)
		time.Sleep(100 * time.Millisecond)
		b.expect(c, exited, 42, "Error")
	})
}

func TestACodeThatNobodyMeasuredIsUnknown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Exact, b.ShimDelay = false, time.Hour
		c := b.run(b.pod("p1", ""), "c1")
		b.Refuse("get-task", c, errdefs.ErrNotFound)
		b.exit(c, 42)
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

// PROPERTIES 11: no event is published before the disk has it. A full disk is tried again, and
// nothing is lost.
func TestAFullDiskDelaysTheTruthAndLosesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		lift := b.Refuse("commit", c, errFull)
		b.exit(c, 42)
		time.Sleep(10 * time.Second)
		b.expect(c, running, 0, "") // what is not durable is not visible
		if n := b.Calls("delete-task", c); n != 0 {
			t.Errorf("cleaned up %d times before it was durable", n)
		}
		lift()
		time.Sleep(time.Minute)
		b.expect(c, exited, 42, "Error")
	})
}

func TestALogThatIsHeldOpenDelaysTheTruthByItsBoundOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.HoldOutput()
		c := b.run(b.pod("p1", ""), "c1")
		began := time.Now()
		b.exit(c, 0)
		<-b.Unit(c).Settled()
		if d := time.Since(began); d != 250*time.Millisecond {
			t.Errorf("settled after %v", d)
		}
	})
}

// PROPERTIES 16.
func TestARetriedCallJoinsTheOneInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		release := b.Hold("cni-add", "")
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
		release()
		wg.Wait()
		if n := len(b.Records().Sandboxes); ids[0] != ids[1] || n != 1 {
			t.Errorf("%v, %d sandboxes", ids, n)
		}
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("a caller that has its answer: %v", err)
		}
	})
}

func TestAResultThatNobodyReceivedGoesToTheNextRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		release := b.Hold("cni-add", "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = b.RunPodSandbox(ctx, config("p1"), "")
		release()
		synctest.Wait()
		id := b.pod("p1", "")
		if all := b.Records().Sandboxes; len(all) != 1 || id != all[0].ID {
			t.Error("a second sandbox was made")
		}
	})
}

// Whichever step fails, everything that was made is undone.
func TestACreationThatFailsLeavesNothing(t *testing.T) {
	for _, op := range []string{"netns", "cni-add", "create-sandbox", "create-container", "create-task", "start-task"} {
		t.Run(op, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				lift := b.Refuse(op, "", errors.New("it fails"))
				if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
					t.Fatal("it did not")
				}
				b.expectLeft(nil)
				if len(b.Records().Sandboxes) != 0 {
					t.Error("the record is left")
				}
				lift()
				b.pod("p1", "") // the name is free
			})
		})
	}
}

func TestWhatCannotBeUndoneStaysAndIsFinishedLater(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Refuse("start-task", "", errors.New("no"))
		b.Refuse("cni-del", "", errors.New("no"))
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
			t.Fatal("it did not fail")
		}
		if l := b.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Fatalf("%v", l)
		}
		b.Heal()
		time.Sleep(10 * time.Minute)
		if len(b.ListPodSandbox(nil)) != 0 {
			t.Error("it was not finished")
		}
		b.expectLeft(nil)
	})
}

func TestStopAndRemoveAreIdempotentAndDefined(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		ctx := t.Context()
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		never := b.create(p, ctr("never"))
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
		b.expectLeft(nil)
	})
}

func TestAStopDuringAStartEndsWhatWasStarted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.create(p, ctr("c1"))
		release := b.HoldAnswer("start-task", c)
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.StartContainer(t.Context(), c) })
		synctest.Wait()
		wg.Go(func() {
			if err := b.StopContainer(t.Context(), c, 0); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		release()
		wg.Wait()
		b.expect(c, exited, 137, "Error")
	})
}

func TestAnExitDuringTheStartIsNotLost(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		release := b.HoldAnswer("start-task", c)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.StartContainer(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		b.exit(c, 3)
		synctest.Wait()
		b.expect(c, exited, 3, "Error") // before the start has returned
		if n := b.Calls("delete-task", c); n != 0 {
			t.Errorf("deleted %d times under the start", n)
		}
		release()
		wg.Wait()
		b.expect(c, exited, 3, "Error")
		time.Sleep(time.Minute)
		if b.Held(c) != "" {
			t.Error("the task was not released")
		}
	})
}

func TestAVMRuntimeIsWitnessedByItsTask(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", "vm"), "c1")
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
	})
}

// The disk is full when a creation is given up: nothing may be left, once there is room again.
func TestACreationGivenUpOnAFullDiskIsUndoneLater(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		release := b.Hold("cni-add", "")
		ended := make(chan error)
		go func() {
			_, err := b.RunPodSandbox(t.Context(), config("p1"), "")
			ended <- err
		}()
		synctest.Wait()
		b.DiskFull(true)
		b.Refuse("start-task", "", errors.New("no"))
		release()
		if err := <-ended; err == nil {
			t.Fatal("it did not fail")
		}
		b.Heal()
		time.Sleep(10 * time.Minute)
		if l := b.ListPodSandbox(nil); len(l) != 0 {
			t.Errorf("left: %v", l)
		}
		b.expectLeft(nil)
	})
}

func TestRequestsAreRefusedWhileBerthStops(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
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
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		b.Refuse("start-task", c, errors.New("no such luck"))
		if err := b.StartContainer(t.Context(), c); err == nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if b.Held(c) != "" {
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
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", handler)
				b.run(p, "c1")
				endpoint, object := b.Unit(p).Now().Endpoint, b.Spec(p) != nil
				if remote := handler != ""; (endpoint.Address != "") != remote || object == remote {
					t.Errorf("endpoint %v, container object %v", endpoint, object)
				}
				loaded := b.Records()
				b.stop()
				again := restart(t, b.World, loaded)
				if l := again.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
					t.Fatalf("after a restart: %v", l)
				}
				lift := b.Refuse("delete-task", p, errors.New("not now"))
				if err := again.StopPodSandbox(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				if l := again.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
					t.Errorf("stopped: %v", l)
				}
				lift() // its own lane tries again
				if err := again.RemovePodSandbox(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				again.expectLeft(nil)
			})
		})
	}
}

func TestAStopOfTheBuiltInSandboxer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		b.Hold("delete-task", p) // the release is not to come first
		sandboxer := pod.BuiltInSandboxer(b.ports.Runtime)
		if err := sandboxer.Stop(t.Context(), p, time.Minute); err != nil { // it ignores the signal
			t.Fatal(err)
		}
		if st, err := sandboxer.Status(t.Context(), p); err != nil || !st.Stopped || st.Code != 137 {
			t.Errorf("%v %v", st, err)
		}
	})
}

// Every relist finds the same units running: none may get one more listener each time.
func TestARelistAddsNoListener(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "vm")
		c := b.run(p, "c1")
		time.Sleep(time.Hour) // relists at leisure
		for range 10 {
			if err := b.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n, m := b.Waiting(p), b.Waiting(c); n != 1 || m != 1 {
			t.Errorf("listeners: %d of the sandbox, %d of the container", n, m)
		}
	})
}

// A caller that removes what it has made in part knows the ID before anything is there, and nobody
// else gets that sandbox.
func TestASandboxIsNotedBeforeItIsMade(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		full := errors.New("no space left")
		if _, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(string) error { return full }); !errors.Is(err, full) {
			t.Error(err)
		}
		b.expectLeft(nil)

		release := b.Hold("cni-add", "")
		noted := ""
		made := make(chan string, 1)
		go func() {
			id, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(id string) error {
				noted = id
				b.expectLeft(nil)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			made <- id
		}()
		synctest.Wait()
		if id, err := b.RunPodSandbox(t.Context(), config("p1"), ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("another call got %q %v", id, err)
		}
		release()
		if id := <-made; id == "" || id != noted {
			t.Errorf("%q was noted, and %q was made", noted, id)
		}
		if _, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(string) error { return nil }); !errdefs.IsAlreadyExists(err) {
			t.Error(err)
		}
	})
}

// A start returned while the process was still the OCI runtime's own, which nobody may look into: a
// postStart hook that came in this moment failed. It returns when the program runs, within a bound.
func TestAProgramRunsOnceItsStartReturns(t *testing.T) {
	for delay, most := range map[time.Duration]time.Duration{
		0:                    0,
		3 * time.Millisecond: 6 * time.Millisecond,
		time.Hour:            110 * time.Millisecond, // a hook of the specification that takes its time
	} {
		inBubble(t, func(t *testing.T, b *bubble) {
			c := b.create(b.pod("p1", ""), ctr("c1"))
			b.World.ExecDelay = delay
			began := time.Now()
			if err := b.StartContainer(t.Context(), c); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took < min(delay, 100*time.Millisecond) || took > most {
				t.Errorf("with a delay of %v it returned after %v", delay, took)
			}
			b.expect(c, running, 0, "")
		})
	}
}
