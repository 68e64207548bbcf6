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

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

func (b *bubble) ready(pod string) bool {
	b.t.Helper()
	st, err := b.PodSandboxStatus(b.t.Context(), pod, false)
	if err != nil {
		b.t.Fatal(err)
	}
	return st.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
}

// joined returns the path of a namespace in the specification of a container; "" for none.
func (b *bubble) joined(id string, kind specs.LinuxNamespaceType) string {
	for _, ns := range b.Spec(id).Linux.Namespaces {
		if ns.Type == kind {
			return ns.Path
		}
	}
	return ""
}

// PROPERTIES 31: a pod whose containers share no PID namespace has no process. Its containers join
// the namespaces by their paths, and its shim ends after the last of their tasks.
func TestASandboxWithoutAProcessIsReadyUntilItIsStopped(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		c := b.run(p, "c")
		if b.Process(p) != nil || b.Calls("create-task", p) != 0 || !b.ready(p) {
			t.Errorf("it has the process %+v, ready %v", b.Process(p), b.ready(p))
		}
		if got := b.joined(c, specs.IPCNamespace); got != b.ports.Pins.IPC(p) {
			t.Errorf("IPC %q", got)
		}
		if got := b.joined(c, specs.UTSNamespace); got != b.ports.Pins.UTS(p) {
			t.Errorf("UTS %q", got)
		}
		b.exit(c, 3)
		time.Sleep(time.Minute)
		b.expect(c, exited, 3, "Error")
		if !b.ready(p) || b.Calls("end-shim", "") != 0 {
			t.Errorf("after the end of its last container: ready %v, shim ended %d times", b.ready(p), b.Calls("end-shim", ""))
		}
		last := b.run(p, "last")
		if err := b.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if b.ready(p) {
			t.Error("it is READY after its stop")
		}
		time.Sleep(time.Minute)
		did := b.Did()
		if end, task := slices.Index(did, "end-shim "+p), slices.Index(did, "delete-task "+last); end < task || task < 0 {
			t.Errorf("the shim ended before the last task was deleted: %q", did)
		}
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		b.expectLeft(nil)
	})
}

// A container that was never started has no task that would keep the shim.
func TestTheShimOfAStoppedPodDoesNotWaitForAContainerThatWasNeverStarted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		b.create(p, ctr("c"))
		if err := b.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if b.Calls("end-shim", p) != 1 || b.Unit(p).Now().Holds.Has(state.HoldPins) {
			t.Errorf("the pod holds %s", b.Unit(p).Now().Holds)
		}
	})
}

// PROPERTIES 31: a shim that dies takes no sandbox with it, and the next container starts another
// one, however many begin at the same time.
func TestASandboxWithoutAProcessOutlivesItsShim(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		b.run(p, "before")
		b.KillShim(p)
		time.Sleep(time.Minute)
		if !b.ready(p) {
			t.Fatal("it is NOTREADY")
		}
		var wg sync.WaitGroup
		for _, name := range []string{"c1", "c2", "c3"} {
			id := b.create(p, ctr(name))
			wg.Go(func() {
				if err := b.StartContainer(t.Context(), id); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		b.expectLeft(nil)
	})
}

// The program that starts a shim was killed when it had started it. The shim had the pod's socket
// and waited for somebody to read its log: each start in this pod took it for the pod's shim and
// hung.
func TestWhatAFailedStartOfAShimHasLeftIsEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		b.KillShim(p)
		time.Sleep(time.Minute)
		id := b.create(p, ctr("c"))
		b.RefuseInPart("start-shim", p, errors.New("signal: killed"))
		if err := b.StartContainer(t.Context(), id); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Errorf("it was started: %v", err)
		}
		if got := b.Calls("end-shim", p); got != 1 {
			t.Errorf("the shim was ended %d times", got)
		}
		b.run(p, "after")
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		b.expectLeft(nil)
	})
}

// While the disk is full it stays on record that a container has a task, although the task is gone:
// its lane and that of its pod leave each other alone, and wait in their back-off, which is a
// second while somebody waits for the removal.
func TestTheReleasesOfAPodWithoutAProcessWaitForAFullDisk(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		c := b.run(p, "c")
		released := b.Hold("delete-task", c)
		b.exit(c, 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.RemovePodSandbox(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		before := b.Calls("commit", c)
		b.Fail("commit", c, 1000)
		released()
		time.Sleep(time.Minute)
		if n := b.Calls("commit", c) - before; n > 130 { // twice a second
			t.Errorf("within a minute it was tried %d times to record the release", n)
		}
		b.Heal()
		wg.Wait()
		b.expectLeft(nil)
	})
}

// PROPERTIES 6: an attempt at a release has used up its time before it comes to the shim, since a
// slow disk held it up. That the pins are not found then says nothing about the shim.
func TestTheShimOfAPodIsEndedThoughItsReleaseWasHeldUp(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		c := b.create(p, ctr("c1"))
		lift := b.Refuse("remove-snapshot", c, errors.New("no"))
		shim := b.Refuse("end-shim", p, errors.New("no"))
		go func() { _ = b.RemovePodSandbox(t.Context(), p) }()
		time.Sleep(time.Minute)
		loaded := b.kill()
		lift()
		shim()
		again := start(t, b.World, loaded)
		b.Stall("commit", c, 1, 12*time.Second)
		if err := again.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		again.expectLeft(nil)
	})
}

// A stop needs no containerd, not even right after berth has come back.
func TestASandboxWithoutAProcessIsStoppedWithoutContainerd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		loaded := b.kill()
		b.StopContainerd()
		next := start(t, b.World, loaded)
		if !next.ready(p) {
			t.Error("it is NOTREADY after a kill of berth")
		}
		if err := next.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if next.ready(p) {
			t.Error("it is READY after its stop")
		}
		b.StartContainerd()
		if err := next.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		next.expectLeft(nil)
	})
}

// PROPERTIES 31: a reboot takes the namespaces away, and the kubelet has to make another sandbox.
func TestASandboxWhosePinsAreLostIsNotReady(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		loaded := b.kill()
		b.LosePins()
		b.KillShim(p)
		next := start(t, b.World, loaded) // it has not compared anything with containerd
		synctest.Wait()
		if next.ready(p) {
			t.Error("it is READY")
		}
		if err := next.RemovePodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		next.expectLeft(nil)
	})
	inBubble(t, func(t *testing.T, b *bubble) { // somebody has unmounted them: a relist finds out
		p := b.pod("p1", world.Pinned)
		b.LosePins()
		if err := b.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if b.ready(p) {
			t.Error("it is READY")
		}
	})
}

// PROPERTIES 4: whatever step of a sandbox without a process a kill cuts off, nothing is left of
// it.
func TestNothingIsLeftOfASandboxWithoutAProcessThatAKillCutOff(t *testing.T) {
	for _, step := range []string{"netns", "cni-add", "sysctls", "files", "create-sandbox", "pins", "start-shim", "hosts"} {
		for _, recorded := range []bool{true, false} { // false: a backup was restored
			inBubble(t, func(t *testing.T, b *bubble) {
				again := cutOff(t, b, step, recorded, func(ctx context.Context) {
					_, _ = b.RunPodSandbox(ctx, config("p1"), world.Pinned)
				})
				if len(again.ListPodSandbox(&runtimeapi.PodSandboxFilter{})) != 0 {
					t.Errorf("%s: the sandbox is there", step)
				}
				if left := b.Left(); len(left) != 0 {
					t.Errorf("%s, recorded %v: left %q", step, recorded, left)
				}
			})
		}
	}
}

// What cannot be made is an error of the creation, and leaves nothing.
func TestASandboxWithoutAProcessThatCannotBeMadeLeavesNothing(t *testing.T) {
	for _, step := range []string{"pins", "start-shim"} {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.Fail(step, "", 1)
			if _, err := b.RunPodSandbox(t.Context(), config("p1"), world.Pinned); err == nil {
				t.Errorf("%s: no error", step)
			}
			b.expectLeft(nil)
			b.pod("p1", world.Pinned) // the name is free
		})
	}
}

// A pod that needs a process has one, whatever its handler can do without.
func TestAPodThatNeedsAProcessHasOne(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		shared := config("shared")
		shared.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		id, err := b.RunPodSandbox(t.Context(), shared, world.Pinned)
		if err != nil {
			t.Fatal(err)
		}
		if b.Process(id) == nil {
			t.Error("a pod that shares its PID namespace has no process")
		}
		host := config("host")
		host.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
		if id, err = b.RunPodSandbox(t.Context(), host, world.Pinned); err != nil {
			t.Fatal(err)
		}
		if b.Process(id) != nil {
			t.Error("a pod in the host's PID namespace has a process")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := world.Free()
		b := start(t, w, state.Loaded{}, func(p *pod.Ports) {
			p.UserNamespaces = func(context.Context, string) error { return nil }
		})
		mine := config("mine")
		ids := []*runtimeapi.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}
		mine.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
		id, err := b.RunPodSandbox(t.Context(), mine, world.Pinned)
		if err != nil {
			t.Fatal(err)
		}
		if b.Process(id) == nil {
			t.Error("a pod in a user namespace of its own has no process")
		}
	})
}

// PROPERTIES 6: an attempt to release a pod waits so long for the disk that its time is over. What
// it did not get to is not taken for released: the next attempt ends the shim.
func TestAnAttemptThatTookTooLongForgetsNoShim(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		before := b.Left()
		p := b.pod("p1", world.Pinned)
		c := b.run(p, "c1")
		answer := b.Hold("delete-task", c)
		if err := b.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		go func() { _ = b.RemovePodSandbox(context.WithoutCancel(t.Context()), p) }()
		synctest.Wait()
		disk := b.Hold("commit", c)
		answer()
		time.Sleep(6 * time.Minute) // the audit has the pod released, which waits for the container
		disk()
		time.Sleep(20 * time.Minute)
		b.expectLeft(before)
	})
}

// PROPERTIES 31, 33 and 35: the pins of a pod without a process could not be read once, when it was
// made or when berth came back: nobody waited for its stop any more, and the stop of a healthy and
// empty pod took until the next comparison, which was five minutes.
func TestAPodWithoutAProcessIsStoppedThoughItsPinsCouldNotBeReadOnce(t *testing.T) {
	for _, why := range world.InVain {
		for times := 1; times <= 3; times++ {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.AskInVain("pins-check", "", times, why)
				p := b.pod("p1", world.Pinned)
				synctest.Wait()
				b.stopWithin(p, 2*time.Second)
				other := b.pod("p2", world.Pinned)
				loaded := b.kill()
				b.AskInVain("pins-check", other, times, why)
				next := start(t, b.World, loaded)
				synctest.Wait()
				next.stopWithin(other, 2*time.Second)
				for _, id := range []string{p, other} {
					if err := next.RemovePodSandbox(t.Context(), id); err != nil {
						t.Fatal(err)
					}
				}
				next.expectLeft(nil)
			})
		}
	}
}

// PROPERTIES 31: the same while the pins cannot be read at all: a stop needs nothing of them.
func TestAPodWithoutAProcessIsStoppedWhileItsPinsCannotBeRead(t *testing.T) {
	for _, boot := range []bool{false, true} {
		inBubble(t, func(t *testing.T, b *bubble) {
			p := b.pod("p1", world.Pinned)
			lift := b.Refuse("pins-check", "", unix.EMFILE)
			if boot {
				b = start(t, b.World, b.kill())
				synctest.Wait()
			}
			b.stopWithin(p, 2*time.Second)
			lift()
			if err := b.RemovePodSandbox(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			b.expectLeft(nil)
		})
	}
}

// stopWithin stops a pod, which may not take longer than most.
func (b *bubble) stopWithin(p string, most time.Duration) {
	b.t.Helper()
	began := time.Now()
	err := b.StopPodSandbox(b.t.Context(), p)
	if took := time.Since(began); err != nil || took > most || b.ready(p) {
		b.t.Errorf("the stop took %s, READY after it: %v: %v", took, b.ready(p), err)
	}
}

// PROPERTIES 2 and 31: the pins of a pod are lost while berth is there, and containerd is not, which a
// comparison would need. Nobody looked: the kubelet made containers in a pod without namespaces.
func TestPinsThatAreLostAreNoticedWithoutAComparison(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		b.StopContainerd()
		b.AskInVain("pins-check", "", 1, unix.EIO) // a later audit asks again
		b.LosePins()
		time.Sleep(2 * pod.PinsEvery * 2 * time.Second)
		synctest.Wait()
		if b.ready(p) {
			t.Error("it is READY")
		}
	})
}
