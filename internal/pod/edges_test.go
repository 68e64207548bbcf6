// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/pod"
	"berth/internal/state"
	"berth/test/world"
)

// PROPERTIES 18: the state disk is full for ten minutes, then there is room. The exit is visible
// within two seconds, and does not wait in the back-off of earlier attempts.
func TestSettlingDoesNotWaitInALongBackOff(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		lift := b.Refuse("commit", c, errFull)
		b.exit(c, 42)
		time.Sleep(10 * time.Minute)
		b.expect(c, running, 0, "")
		lift()
		time.Sleep(2 * time.Second)
		b.expect(c, exited, 42, "Error")
	})
}

// A stop that arrives while an exit waits to be settled has it settled at once.
func TestAStopHasAWaitingExitSettledNow(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		lift := b.Refuse("commit", c, errFull)
		b.exit(c, 42)
		time.Sleep(time.Minute + 300*time.Millisecond)
		lift()
		began := time.Now()
		if err := b.StopContainer(t.Context(), c, time.Minute); err != nil || time.Since(began) != 0 {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
	})
}

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

// silent is a containerd that answers no question about a task once hang is set.
type silent struct {
	pod.Runtime
	mu    sync.Mutex
	asked map[string]int
	hang  chan struct{}
}

func (r *silent) TaskState(ctx context.Context, id string) (pod.TaskState, error) {
	r.mu.Lock()
	hang := r.hang
	r.asked[id]++
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return r.Runtime.TaskState(ctx, id)
}

// PROPERTIES 2 and 17: tasks that nobody but their shims can speak for do not answer. The audit
// finds the end of a process that the kernel sees all the same.
func TestTasksThatDoNotAnswerHideNoExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &silent{asked: map[string]int{}}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { r.Runtime, p.Runtime = p.Runtime, r })
		vm := b.pod("vm", "vm")
		for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
			b.run(vm, name)
		}
		c := b.run(b.pod("p1", ""), "c1")
		r.mu.Lock()
		r.hang = make(chan struct{})
		clear(r.asked)
		r.mu.Unlock()
		b.exitUnseen(c, 42)
		time.Sleep(5 * time.Second)
		b.expect(c, exited, 42, "Error")
		close(r.hang)
		r.mu.Lock()
		defer r.mu.Unlock()
		for id, n := range r.asked {
			if n != 1 {
				t.Errorf("%s: %d questions at once", id, n)
			}
		}
		if len(r.asked) < 27 {
			t.Errorf("only %d tasks were asked", len(r.asked))
		}
	})
}

// A creation that hangs does not hold up the stop of its pod, nor the pod's network.
func TestAStopOfAPodInterruptsCreationsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		b.Hold("prepare-snapshot", "")
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
		if slices.Contains(b.Left(), "CNI result "+p) {
			t.Error("the network is held")
		}
		if l := b.ListContainers(nil); len(l) != 0 {
			t.Errorf("left: %v", l)
		}
	})
}

// A removal that arrives while the last step of a creation is being committed is not lost.
func TestARemovalDuringACreationTakesEffect(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		left := b.Left()
		release := b.Hold("create-container", "")
		created := make(chan error, 1)
		go func() {
			_, err := b.CreateContainer(t.Context(), p, ctr("c1"))
			created <- err
		}()
		synctest.Wait()
		c := b.Unit(b.Records().Containers[0].ID)
		if err := c.MarkRemoving(); err != nil {
			t.Fatal(err)
		}
		release()
		if err := <-created; !errdefs.IsFailedPrecondition(err) {
			t.Errorf("created: %v", err)
		}
		<-c.Removed()
		b.expectLeft(left)
	})
}

// A removal whose caller gives up is on record, says what it waits for, and goes on by itself.
func TestARemovalThatHangsIsOnRecordAndGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		release := b.Hold("delete-task", c)
		b.exit(c, 42)
		time.Sleep(2 * time.Second) // the release is at it
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := b.RemoveContainer(ctx, c)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still releasing task") {
			t.Errorf("it says: %v", err)
		}
		if !b.Unit(c).Now().Removing {
			t.Error("the removal is not on record")
		}
		release()
		time.Sleep(time.Minute)
		if b.Unit(c) != nil {
			t.Error("it did not go on")
		}
	})
}

// A sandbox that is removed together with its containers may wait for them. Nothing is wrong then:
// each removal of a pod could look like a failed one to whoever reads the log.
func TestASandboxThatWaitsForItsContainersIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &failures{}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Observer = said })
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		release := b.Hold("delete-task", c)
		removed := make(chan error, 1)
		go func() { removed <- b.RemovePodSandbox(t.Context(), p) }()
		time.Sleep(5 * time.Second)
		release()
		if err := <-removed; err != nil {
			t.Error(err)
		}
		if said.waits == 0 || len(said.failed) > 0 {
			t.Errorf("it was said %d times that the sandbox waits; failed: %q", said.waits, said.failed)
		}
	})
}

// failures keeps what is reported of attempts.
type failures struct {
	mu     sync.Mutex
	waits  int
	failed []string
}

func (f *failures) Event(_, what string, err error, _ ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.Contains(what, "waits for the removal") {
		f.waits++
	}
	if err != nil {
		f.failed = append(f.failed, what+": "+err.Error())
	}
}

func (*failures) Settled(string, exit.Fact, time.Duration) {}
func (*failures) Survived(string, uint64, exit.Limit)      {}
func (*failures) Released(string, state.Hold, state.Hold)  {}
func (*failures) Removed(string)                           {}
func (*failures) Repaired(pod.Repair)                      {}

// PROPERTIES 21: a delete that takes 30 s ends, though the first attempts are cut off.
func TestASlowDeleteIsNotStuck(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.Stall("delete-task", c, 100, 30*time.Second)
		b.exit(c, 42)
		time.Sleep(5 * time.Minute)
		if b.Held(c) != "" {
			t.Errorf("not deleted after %d attempts", b.Calls("delete-task", c))
		}
	})
}

// Whoever asked for the removal of what runs has gone before it could be killed: the audit goes on.
func TestARemovalOfWhatRunsGoesOnWithoutItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.Refuse("signal", c, errors.New("not now"))
		if err := b.RemoveContainer(t.Context(), c); err == nil {
			t.Fatal("it succeeded")
		}
		b.Heal()
		time.Sleep(10 * time.Second)
		if b.Unit(c) != nil {
			t.Error("it did not go on")
		}
	})
}

func TestAContainerThatWasStoppedBeforeItsStartCanBeStarted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
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
	for _, step := range []string{"create-task", "commit", "start-task"} {
		t.Run(step, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", "")
				c := b.create(p, ctr("c1"))
				b.Hold(step, c)
				go func() { _ = b.StartContainer(t.Context(), c) }()
				synctest.Wait()

				again := start(t, b.World, b.kill())
				b.Heal()
				before := len(b.Did())
				started := make(chan error, 1)
				go func() { started <- again.StartContainer(t.Context(), c) }()
				synctest.Wait()
				select {
				case err := <-started:
					t.Fatalf("started before it was compared: %v", err)
				default:
				}
				b.Fail("create-task", c, 1) // the shim is at it still
				if err := again.Relist(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := <-started; err != nil {
					t.Fatal(err)
				}
				layer, task := "prepare-snapshot "+c, "create-task "+c
				did := slices.DeleteFunc(b.Did()[before:], func(d string) bool { return d != layer && d != task })
				if want := []string{layer, task, layer, task}; !slices.Equal(did, want) {
					t.Errorf("it did %q, want a new layer before each task: %q", did, want)
				}
				synctest.Wait()
				again.expect(c, running, 0, "")
				again.exit(c, 42)
				synctest.Wait()
				again.expect(c, exited, 42, "Error")
				if err := again.RemovePodSandbox(t.Context(), p); err != nil {
					t.Error(err)
				}
				again.expectLeft(nil)
			})
		})
	}
}

// PROPERTIES 5: berth is killed once more while it takes a start back, whose process it has just killed.
// The next berth goes on with that, and does not take the end of the process for an exit.
func TestAStartIsTakenBackByTheNextBerth(t *testing.T) {
	t.Run("and asked for again", func(t *testing.T) { takenBackTwice(t, false) })
	t.Run("or the container is stopped, while containerd is away", func(t *testing.T) { takenBackTwice(t, true) })
}

// The view that keeps the layers while a start is undone goes with the container, also if a client
// removes it before berth has compared it.
func TestAContainerIsRemovedInTheMidstOfAnUndoneStart(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.create(p, ctr("c1"))
		b.Hold("start-task", c)
		go func() { _ = b.StartContainer(t.Context(), c) }()
		synctest.Wait()
		second := start(t, b.World, b.kill())
		b.Heal()
		b.Hold("remove-snapshot", c)
		if err := second.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		third := start(t, b.World, second.kill())
		b.Heal()
		if err := third.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		third.expectLeft(nil)
	})
}

// PROPERTIES 5: a start that failed before its process was on record is settled.
func TestAStartThatFailsBeforeItsProcessIsOnRecordIsSettled(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		b.LoseAnswer("watch", c)
		if err := b.StartContainer(t.Context(), c); err == nil {
			t.Fatal("it started")
		}
		time.Sleep(time.Minute)
		b.expect(c, exited, 128, "StartError")
	})
}

func takenBackTwice(t *testing.T, stopped bool) {
	t.Helper()
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		b.Hold("start-task", c)
		go func() { _ = b.StartContainer(t.Context(), c) }()
		synctest.Wait()
		second := start(t, b.World, b.kill())
		b.Heal()
		b.Hold("wait-task", c)
		if err := second.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p := b.Process(c); !p.Ended || p.Started {
			t.Fatalf("the second berth did not kill it: %+v", p)
		}
		third := start(t, b.World, second.kill())
		b.Heal()
		if !stopped {
			if err := third.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := third.StartContainer(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			third.expect(c, running, 0, "")
			return
		}
		b.StopContainerd()
		if err := third.StopContainer(t.Context(), c, 0); err != nil {
			t.Fatal(err)
		}
		third.expect(c, exited, 128, "StartError")
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
		again.Exited(exit.Fact{ID: p, Code: 137, Measured: true, At: time.Now(), Origin: exit.Kernel})
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

// startHung kills b while it starts a container, at the start of the task, which hold keeps from
// happening or from being answered. It returns the berth that follows, for which the shim does not
// answer until answer is called. Without recorded, that berth finds the records from before.
func startHung(t *testing.T, b *bubble, c string, hold func(op, id string) func(), recorded bool) (again *bubble, answer func()) {
	t.Helper()
	loaded := b.Records()
	hold("start-task", c)
	go func() { _ = b.StartContainer(t.Context(), c) }()
	synctest.Wait()
	if recorded {
		loaded = b.Records()
	}
	b.kill()
	b.Heal()
	answer = b.Hold("get-task", c)
	return restart(t, b.World, loaded), answer
}

// A shim does not answer when berth comes back: whether the start that was cut off took effect is
// found out once it does, long before the next relist, and soon after where the shim was only slow.
// Where the process was on record, the start was given up at once.
func TestAShimThatDidNotAnswerAtBootIsAskedAgainSoon(t *testing.T) {
	for _, tc := range []struct {
		recorded     bool
		silent, most time.Duration
	}{
		{false, 300 * time.Millisecond, 2 * time.Second},
		{true, 300 * time.Millisecond, 2 * time.Second},
		{false, 5 * time.Second, 12 * time.Second},
		{true, 5 * time.Second, 12 * time.Second},
		{false, time.Minute, 76 * time.Second},
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.create(b.pod("p1", ""), ctr("c1"))
				again, answer := startHung(t, b, c, b.Hold, tc.recorded)
				began := time.Now()
				started := make(chan error, 1)
				go func() { started <- again.StartContainer(t.Context(), c) }()
				time.Sleep(tc.silent)
				answer()
				if err := <-started; err != nil || time.Since(began) > tc.most {
					t.Errorf("started after %v: %v", time.Since(began), err)
				}
			})
		})
	}
}

// A comparison that takes long is not joined by another one, which would keep berth from stopping.
func TestComparisonsDoNotPileUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		again, _ := startHung(t, b, c, b.Hold, false)
		slow := again.RefuseOnce("list-containers", "", nil)
		defer slow()
		time.Sleep(2 * firstRelistAtMost)                 // the audit compares, and containerd does not answer
		if err := again.Relist(t.Context()); err != nil { // a new connection
			t.Fatal(err)
		}
		synctest.Wait()
		before := again.Calls("list-containers", "")
		slower := again.RefuseOnce("list-containers", "", nil)
		defer slower()
		time.Sleep(2 * firstRelistAtMost)
		if again.Calls("list-containers", "") != before {
			t.Error("another comparison was begun while one was under way")
		}
		again.stop()
	})
}

// firstRelistAtMost is longer than the pause before an incomplete comparison is repeated.
const firstRelistAtMost = time.Second

// A start took effect and is not on record, berth was killed, and the shim does not answer: a stop
// ends the process, and what is found to run in a stopped pod later is ended.
func TestAStopEndsWhatAStartThatWasCutOffMade(t *testing.T) {
	for _, recorded := range []bool{false, true} {
		t.Run(fmt.Sprint(recorded), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", "")
				c := b.create(p, ctr("c1"))
				again, answer := startHung(t, b, c, b.HoldAnswer, recorded)
				if err := again.StopPodSandbox(t.Context(), p); err != nil || recorded && !b.Process(c).Ended {
					t.Errorf("stop: %v, ended: %v", err, b.Process(c).Ended)
				}
				answer()
				time.Sleep(time.Minute)
				if !b.Process(c).Started || !b.Process(c).Ended {
					t.Errorf("it was started: %v, and has ended: %v", b.Process(c).Started, b.Process(c).Ended)
				}
				if st, err := again.ContainerStatus(t.Context(), c, false); err != nil || st.GetStatus().GetState() != exited {
					t.Errorf("%v, %v", st, err)
				}
			})
		})
	}
}

// The sandbox's process ended between the creation of a container and its start: the namespaces
// that the spec names by PID may be another process's.
func TestAContainerIsNotStartedInTheNamespacesOfAnotherProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.create(p, ctr("c1"))
		release := b.Hold("create-task", c)
		started := make(chan error, 1)
		go func() { started <- b.StartContainer(t.Context(), c) }()
		synctest.Wait()
		b.exitUnseen(p, 0) // not settled yet, so that the sandbox is READY still
		release()
		if err := <-started; !errdefs.IsFailedPrecondition(err) {
			t.Errorf("it started: %v", err)
		}
		if n := b.Calls("start-task", c); n != 0 {
			t.Errorf("started %d times", n)
		}
		time.Sleep(time.Minute)
		b.expect(c, exited, 128, "StartError")
	})
}

// PROPERTIES 5: a program that ended by itself has its own code, though berth could not record that
// it had started. In a virtual machine only the shim knows it.
func TestAProgramThatEndedByItselfIsNoStartError(t *testing.T) {
	for _, handler := range []string{"", "vm"} {
		t.Run(handler, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.create(b.pod("p1", handler), ctr("c1"))
				release := b.HoldAnswer("start-task", c)
				started := make(chan error, 1)
				go func() { started <- b.StartContainer(t.Context(), c) }()
				synctest.Wait()
				b.exitUnseen(c, 3)
				b.DiskFull(true)
				release()
				if err := <-started; err == nil {
					t.Error("it started, and nobody could record that")
				}
				time.Sleep(10 * time.Second)
				b.DiskFull(false)
				time.Sleep(time.Minute)
				b.expect(c, exited, 3, "Error")
			})
		})
	}
}

// PROPERTIES 33: containerd ends while it carries a start out. The program that it has started is not
// killed, and is not reported as one that could not be started, for want of an answer.
func TestAStartThatWasNotAnsweredTookEffect(t *testing.T) {
	for _, delay := range []time.Duration{0, 300 * time.Millisecond} {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.World.ExecDelay = delay // the shim is in the midst of it
			c := b.create(b.pod("p1", ""), ctr("c1"))
			b.LoseAnswer("start-task", c)
			if err := b.StartContainer(t.Context(), c); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			b.expect(c, running, 0, "")
			b.exit(c, 7)
			time.Sleep(time.Minute)
			b.expect(c, exited, 7, "Error")
		})
	}
}

// PROPERTIES 5: the kill of what a start had made fails, and the program ends by itself meanwhile.
// Where the kernel has no code, the shim is asked for it.
func TestAProgramThatEndsBeforeItIsKilledIsNoStartError(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Exact = false
		c := b.create(b.pod("p1", ""), ctr("c1"))
		release := b.HoldAnswer("start-task", c)
		started := make(chan error, 1)
		go func() { started <- b.StartContainer(t.Context(), c) }()
		synctest.Wait()
		b.DiskFull(true)
		b.Fail("signal", c, 1)
		b.Fail("wait-task", c, 1) // the connection broke
		b.Swallow(1, 0)           // no event has the code either
		release()
		if err := <-started; err == nil {
			t.Error("it started, and nobody could record that")
		}
		synctest.Wait()
		b.exit(c, 12)
		b.DiskFull(false)
		time.Sleep(time.Minute)
		b.expect(c, exited, 12, "Error")
	})
}

// PROPERTIES 5: a start that was cut off had taken effect, and its program ended. While nobody can say
// how, its code is unknown, and not that of a start that failed.
func TestAProgramOfACutOffStartHasNoCodeUntilItsShimAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.create(b.pod("p1", ""), ctr("c1"))
		release := b.HoldAnswer("start-task", c)
		go func() { _ = b.StartContainer(t.Context(), c) }()
		synctest.Wait()
		loaded := b.kill()
		release()
		b.Exit(c, 43, false)
		again := start(t, b.World, loaded)
		b.StopContainerd()
		if err := again.StopContainer(t.Context(), c, 0); err != nil {
			t.Fatal(err)
		}
		again.expect(c, exited, 255, "Unknown")
		b.StartContainerd()
		time.Sleep(10 * time.Minute)
		again.expect(c, exited, 43, "Error")
	})
}

// PROPERTIES 5: the kernel's fact about the process of a start that was undone may come after
// another start. It says nothing about the process of that one.
func TestTheEndOfAnEarlierProcessIsNotThatOfTheNext(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.Exited(exit.Fact{
			ID:       c,
			Pid:      1, // never a container's
			Code:     137,
			Measured: true,
			At:       time.Now(),
			Origin:   exit.Kernel,
		})
		time.Sleep(time.Minute)
		b.expect(c, running, 0, "")
	})
}

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

// panicking is a containerd of which one method panics.
type panicking struct {
	pod.Runtime
	in atomic.Value // the name of a method
}

// enter panics in the method that is named.
func (r *panicking) enter(method string) {
	if r.in.Load() == method {
		panic(method)
	}
}

func (r *panicking) PrepareSnapshot(ctx context.Context, l pod.Layer) error {
	r.enter("PrepareSnapshot")
	return r.Runtime.PrepareSnapshot(ctx, l)
}

func (r *panicking) StartTask(ctx context.Context, id string) error {
	r.enter("StartTask")
	return r.Runtime.StartTask(ctx, id)
}

func (r *panicking) DeleteSandbox(ctx context.Context, id string) error {
	r.enter("DeleteSandbox")
	return r.Runtime.DeleteSandbox(ctx, id)
}

// What panics in an operation ends that operation with an error, is undone, and ends nothing else.
func TestAPanicEndsItsCallAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &panicking{}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { r.Runtime, p.Runtime = p.Runtime, r })
		p := b.pod("p1", "")
		r.in.Store("PrepareSnapshot")
		if _, err := b.CreateContainer(t.Context(), p, ctr("c1")); !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "PrepareSnapshot") {
			t.Errorf("got %v", err)
		}
		r.in.Store("")
		c, c2 := b.run(p, "c1"), b.create(p, ctr("c2"))
		r.in.Store("StartTask")
		if err := b.StartContainer(t.Context(), c2); !errdefs.IsInternal(err) {
			t.Errorf("got %v", err)
		}
		r.in.Store("")
		time.Sleep(time.Minute)
		b.expect(c2, exited, 128, "StartError")
		b.expect(c, running, 0, "")
		r.in.Store("DeleteSandbox")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.RemovePodSandbox(ctx, p); err == nil || !strings.Contains(err.Error(), "DeleteSandbox") {
			t.Errorf("got %v", err)
		}
		r.in.Store("")
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Error(err)
		}
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

// Evented PLEG takes the first container of each name for the current one.
func TestContainersOfAPodComeNewestFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		sub := b.feed.Subscribe()
		defer sub.Close()
		p := b.pod("p1", "")
		var want []string
		for attempt := range uint32(3) {
			cfg := ctr("c1")
			cfg.Metadata.Attempt = attempt
			c := b.create(p, cfg)
			want = append([]string{c}, want...)
			time.Sleep(time.Second)
		}
		resp, err := b.PodSandboxStatus(t.Context(), p, false)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, got []*runtimeapi.ContainerStatus) {
			if len(got) != len(want) {
				t.Errorf("%s: %d containers, want %d", what, len(got), len(want))
				return
			}
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
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		ctrs, sandboxes := b.ListContainers(nil), b.ListPodSandbox(nil)
		if b.ListContainers(nil)[0] != ctrs[0] || b.ListPodSandbox(nil)[0] != sandboxes[0] {
			t.Error("made anew though nothing has changed")
		}
		b.exit(c, 0)
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
	inBubble(t, func(t *testing.T, b *bubble) {
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
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		var cs []string
		for _, name := range strings.Split("abcdefghij", "") {
			cs = append(cs, b.run(p, name))
		}
		before := len(b.Did())
		for _, c := range cs {
			b.exit(c, 1)
			time.Sleep(30 * time.Millisecond)
		}
		for _, d := range b.Did()[before:] {
			if strings.HasPrefix(d, "delete-task") && d != "delete-task "+cs[0] { // the first came alone
				t.Errorf("a release began between exits: %s", d)
			}
		}
		began := time.Now()
		if err := b.RemoveContainer(t.Context(), cs[1]); err != nil || time.Since(began) != 0 {
			t.Errorf("a removal waited %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Second)
		for _, c := range cs {
			if b.Held(c) != "" {
				t.Errorf("%s is not released", c)
			}
		}
	})
}

// A release that hangs keeps its place among the young ones for a second only.
func TestHangingReleasesDoNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		var wg sync.WaitGroup
		for i := range 100 {
			c := b.run(p, fmt.Sprint("c", i))
			b.Hold("delete-task", c)
			wg.Go(func() { b.exit(c, 1) })
		}
		free := b.run(p, "free")
		b.exit(free, 1)
		time.Sleep(5 * time.Second)
		if b.Held(free) != "" {
			t.Error("not released after 5 s")
		}
		wg.Wait()
	})
}

// damage is what a restart loads if the records of containers cannot be read.
func damage(loaded state.Loaded, pod string, containers ...string) state.Loaded {
	for _, c := range containers {
		loaded.Damaged = append(loaded.Damaged, state.Damaged{
			Kind:      state.KindContainer,
			ID:        c,
			Err:       errors.New("unreadable"),
			Container: state.Container{ID: c, PodID: pod, Config: &runtimeapi.ContainerConfig{}},
		})
	}
	loaded.Containers = nil
	return loaded
}

// A stop ends what runs, whatever can be read of its record, and nothing runs on without its pod.
func TestAStopEndsWhatADamagedRecordIsAbout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		nothing := b.Left()
		p := b.pod("p1", "")
		c1, c2, c3 := b.run(p, "c1"), b.run(p, "c2"), b.run(p, "c3")
		again := restart(t, b.World, damage(b.kill(), p, c1, c2, c3))
		if err := again.StopContainer(t.Context(), c1, 0); err != nil || !b.Process(c1).Ended || b.Process(c2).Ended {
			t.Errorf("stop: %v; ended: %v, the other: %v", err, b.Process(c1).Ended, b.Process(c2).Ended)
		}
		if err := again.StopPodSandbox(t.Context(), p); err != nil || !b.Process(c2).Ended || !b.Process(c3).Ended {
			t.Errorf("stop of the pod: %v; ended: %v, %v", err, b.Process(c2).Ended, b.Process(c3).Ended)
		}
		if err := again.RemovePodSandbox(t.Context(), p); err != nil {
			t.Error(err)
		}
		again.expectLeft(nothing)
	})
}

// A damaged record is left alone until somebody removes it; then everything of its ID goes.
func TestADamagedRecordCanBeRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		left := b.Left()
		c := b.run(p, "c1")
		again := restart(t, b.World, damage(b.kill(), p, c))
		time.Sleep(time.Hour)
		if b.Held(c) == "" {
			t.Fatal("what belongs to a damaged record was reaped unasked")
		}
		again.expect(c, runtimeapi.ContainerState_CONTAINER_UNKNOWN, 0, "RecordDamaged")
		if l := again.ListContainers(&runtimeapi.ContainerFilter{PodSandboxId: p}); len(l) != 1 || l[0].GetId() != c {
			t.Errorf("listed: %v", l)
		}
		if err := again.RemoveContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		again.expectLeft(left)
	})
}
