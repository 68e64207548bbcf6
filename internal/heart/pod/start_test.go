// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

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

// believing is a runtime whose shims say that they have deleted what they are asked to delete.
type believing struct {
	pod.Runtime
	left []string // what was looked for after all
}

func (r *believing) DeleteTask(ctx context.Context, id string) error {
	if err := r.Runtime.DeleteTask(ctx, id); !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

func (r *believing) EndLeft(ctx context.Context, id string) error {
	r.left = append(r.left, id)
	return r.Runtime.EndLeft(ctx, id)
}

func (r *believing) plugIn(p *pod.Ports) { r.Runtime, p.Runtime = p.Runtime, r }

// PROPERTIES 6: a start was cut off twice, by the ends of containerd. The shim knew of the first
// alone and said that it had deleted the task, and the control group that the second had made
// stayed. What a start that was cut off may have left is looked for, whatever the shim says; after
// a program that ran it is not.
func TestWhatAStartThatWasCutOffHasLeftIsLookedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, first *bubble) {
		first.stop()
		r := &believing{}
		b := start(t, first.World, state.Loaded{}, r.plugIn)
		p := b.pod("p1", "")
		cut, ran := b.create(p, ctr("c1")), b.run(p, "c2")
		lift := b.Refuse("create-task", cut, errdefs.ErrUnavailable)
		if err := b.StartContainer(t.Context(), cut); err == nil {
			t.Fatal("a start that was cut off succeeded")
		}
		lift()
		b.exit(ran, 3)
		for _, c := range []string{cut, ran} {
			if err := b.RemoveContainer(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Contains(r.left, cut) || slices.Contains(r.left, ran) {
			t.Errorf("looked for what is left of %q: of %s, and not of %s, which ran", r.left, cut, ran)
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

// PROPERTIES 33: containerd ends while it carries a start out. The program that it has started is
// not killed, and is not reported as one that could not be started, for want of an answer.
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
func TestAProgramThatEndedByItselfIsNotAStartError(t *testing.T) {
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

// PROPERTIES 5: the kill of what a start had made fails, and the program ends by itself meanwhile.
// Where the kernel has no code, the shim is asked for it.
func TestAProgramThatEndsBeforeItIsKilledIsNotAStartError(t *testing.T) {
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

// PROPERTIES 5: berth is killed once more while it takes a start back, whose process it has just
// killed. The next berth goes on with that, and does not take the end of the process for an exit.
func TestAStartIsTakenBackByTheNextBerth(t *testing.T) {
	t.Run("and asked for again", func(t *testing.T) { takenBackTwice(t, false) })
	t.Run("or the container is stopped, while containerd is away", func(t *testing.T) { takenBackTwice(t, true) })
}

// PROPERTIES 35: a container was to be started before berth had compared it, and was removed: the start
// waited for a comparison of what was gone, as long as its client did.
func TestAStartThatWaitsForAComparisonEndsWithTheContainer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.create(p, ctr("c1"))
		again := start(t, b.World, b.kill())
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		started := make(chan error, 1)
		go func() { started <- again.StartContainer(ctx, c) }()
		synctest.Wait()
		began := time.Now()
		if err := again.RemoveContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := <-started; err == nil || time.Since(began) > 2*time.Second {
			t.Errorf("started after %s: %v", time.Since(began), err)
		}
	})
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

// PROPERTIES 5: a start that was cut off had taken effect, and its program ended. While nobody can
// say how, its code is unknown, and not that of a start that failed.
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
			At:       clock.Stamped(time.Now()),
			Origin:   exit.Kernel,
		})
		time.Sleep(time.Minute)
		b.expect(c, running, 0, "")
	})
}

// restoring begins a start of which the shim has restored the process. berth asks which one that
// is, and does not get the answer before release is called.
func restoring(t *testing.T, b *bubble) (id string, began <-chan error, release func()) {
	t.Helper()
	ctr := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
	release = b.Hold("get-task", ctr)
	started := make(chan error, 1)
	go func() { started <- b.StartContainer(context.WithoutCancel(t.Context()), ctr) }()
	synctest.Wait()
	if st := b.Unit(ctr).Now(); st.Phase != state.Created || !strings.HasSuffix(st.Restoring, ctr) {
		t.Errorf("the record says %+v", st)
	}
	if !b.Process(ctr).Started {
		t.Error("it is not restored")
	}
	return ctr, started, release
}

// PROPERTIES 32: a process that was restored runs, and no shim knows it. The start fails, and the
// process is ended.
func TestAProcessOfARestoreThatWasCutOffIsEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		before := b.Left()
		id := b.create(p, restored("c1", world.Archive))
		b.CutRestores(1)
		if err := b.StartContainer(t.Context(), id); err == nil {
			t.Error("it was started")
		}
		synctest.Wait()
		b.expect(id, exited, 128, "StartError")
		if proc := b.Process(id); proc == nil || !proc.Ended {
			t.Errorf("%+v", proc)
		}
		if err := b.RemoveContainer(t.Context(), id); err != nil {
			t.Error(err)
		}
		b.expectLeft(before)
	})
}

// The start of a container that is to be restored is refused before the shim is asked: the shim
// never takes its ends of the stdio, which is released all the same.
func TestTheStdioOfARefusedRestoreIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatekeeper{
			plugin: plugin{fail: map[string]error{"starting": errors.New("not now")}},
			look:   func(string, pod.Target) {},
		}
		b := start(t, world.Free(), state.Loaded{}, withHooks(g))
		id := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
		if err := b.StartContainer(t.Context(), id); err == nil {
			t.Error("a start that a hook refused succeeded")
		}
		time.Sleep(time.Minute)
		b.expect(id, exited, 128, "StartError")
		if holds := b.Unit(id).Now().Holds; holds.Has(state.HoldIO) {
			t.Errorf("it still holds %s", holds.Names())
		}
	})
}

// PROPERTIES 32: a process that ends before anybody watches it ends with its own code.
func TestAProcessEndsAsSoonAsItIsRestored(t *testing.T) {
	for _, exact := range []bool{true, false} {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.World.Exact = exact
			id, began, release := restoring(t, b)
			b.exit(id, 7)
			synctest.Wait()
			release()
			if err := <-began; err != nil {
				t.Error(err)
			}
			synctest.Wait()
			b.expect(id, exited, 7, "Error")
		})
	}
}

// PROPERTIES 32: berth is killed when the shim has restored the process and no record has it: the
// next berth asks the shim, and watches the process, or reports how it ended.
func TestAProcessIsFoundThatNoRecordHas(t *testing.T) {
	for _, ends := range []bool{false, true} {
		inBubble(t, func(t *testing.T, b *bubble) {
			id, _, release := restoring(t, b)
			loaded := b.kill()
			release()
			if ends {
				b.exit(id, 7)
			}
			next := restart(t, b.World, loaded)
			if !ends {
				next.expect(id, running, 0, "")
				if st := next.Unit(id).Now(); st.Restoring != "" || st.Process.Pid == 0 {
					t.Errorf("the record says %+v", st)
				}
				next.exit(id, 7)
			}
			synctest.Wait()
			next.expect(id, exited, 7, "Error")
		})
	}
}

// PROPERTIES 32: as before, but the shim is killed, too: nobody knows the process, and it is ended.
// It has run, so that its end is not that of a failed start, and no witness is left that has its
// code.
func TestAProcessIsEndedThatNobodyKnows(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		id, _, release := restoring(t, b)
		p := b.Unit(id).Pod()
		loaded := b.kill()
		release()
		b.KillShim(p)
		next := restart(t, b.World, loaded)
		synctest.Wait()
		next.expect(id, exited, 255, "Unknown")
		if proc := next.Process(id); !proc.Ended {
			t.Errorf("%+v", proc)
		}
	})
}

// PROPERTIES 32: berth does not get to know whether the process that it watches is the restored
// one. The start fails, the process is ended, and the end is visible at once. Its program has run,
// so that the end is that of a program which berth has killed, and not that of a failed start.
func TestARestoreFailsThatTheShimDoesNotConfirm(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		id := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
		watched := b.Hold("watch", id)
		started := make(chan error, 1)
		go func() { started <- b.StartContainer(t.Context(), id) }()
		synctest.Wait()
		b.Fail("get-task", id, 1)
		watched()
		if err := <-started; err == nil {
			t.Error("it was started")
		}
		time.Sleep(2 * time.Second)
		b.expect(id, exited, 137, "Error")
		if proc := b.Process(id); !proc.Ended {
			t.Errorf("%+v", proc)
		}
	})
}

// PROPERTIES 32: a process ends after the shim has said that it runs, and before it is on record:
// the notices that come meanwhile are not those of a start that was undone.
func TestAProcessEndsBeforeItsRestoreIsRecorded(t *testing.T) {
	for _, exact := range []bool{true, false} {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.World.Exact = exact
			id := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
			watched := b.Hold("watch", id)
			started := make(chan error, 1)
			go func() { started <- b.StartContainer(t.Context(), id) }()
			synctest.Wait()
			answer := b.HoldAnswer("get-task", id) // the shim says that it runs
			watched()
			synctest.Wait()
			b.exit(id, 7)
			synctest.Wait()
			answer()
			if err := <-started; err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Second)
			b.expect(id, exited, 7, "Error")
		})
	}
}
