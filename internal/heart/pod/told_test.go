// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// notes collects the events of units.
type notes chan event.Event

func (n notes) Note(_ string, e event.Event) {
	select {
	case n <- e:
	default:
	}
}

// holds returns the events that say what keeps a process from its end.
func (n notes) holds() (found []event.EndHeld) {
	for {
		select {
		case e := <-n:
			if h, ok := e.(event.EndHeld); ok {
				found = append(found, h)
			}
		default:
			return found
		}
	}
}

// PROPERTIES 51: a child traces init and holds it at its exit, so that one SIGKILL does not end it.
// The stop of the container, of a pod, and their removal, never returned, also after a restart.
func TestAProcessThatIsHeldAtItsExitIsEnded(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, b *bubble, p, c string) error{
		"stop": func(ctx context.Context, b *bubble, p, c string) error {
			if err := b.StopContainer(ctx, c, 0); err != nil {
				return err
			}
			return b.RemovePodSandbox(ctx, p)
		},
		"stop with a grace": func(ctx context.Context, b *bubble, p, c string) error {
			if err := b.StopContainer(ctx, c, time.Second); err != nil {
				return err
			}
			return b.RemovePodSandbox(ctx, p)
		},
		"remove": func(ctx context.Context, b *bubble, p, c string) error {
			if err := b.RemoveContainer(ctx, c); err != nil {
				return err
			}
			return b.RemovePodSandbox(ctx, p)
		},
		"stop the pod": func(ctx context.Context, b *bubble, p, _ string) error {
			if err := b.StopPodSandbox(ctx, p); err != nil {
				return err
			}
			return b.RemovePodSandbox(ctx, p)
		},
		"remove the pod": func(ctx context.Context, b *bubble, p, _ string) error { return b.RemovePodSandbox(ctx, p) },
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *bubble) {
					p := b.pod("p1", "")
					c := b.run(p, "c1")
					b.HoldEnd(c, 1)
					b.HoldEnd(p, 2) // its pause process is the init of a PID namespace, too
					if restarted {
						gone, giveUp := context.WithTimeout(t.Context(), 500*time.Millisecond)
						_ = end(gone, b, p, c) // its caller goes away
						giveUp()
						b = restart(t, b.World, b.kill())
					}
					began := time.Now()
					if err := end(t.Context(), b, p, c); err != nil || time.Since(began) > 10*time.Second {
						t.Errorf("ended after %v: %v", time.Since(began), err)
					}
					b.expectLeft(nil)
				})
			})
		}
	}
}

// PROPERTIES 51: a process that nothing can end now. Each call returns within its bound and says what
// keeps the process from its end; it goes on without them, and the process ends as soon as it can.
func TestACallSaysWhatKeepsAProcessFromItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(notes, 1000)
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Observer = told })
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		b.HoldEnd(c, -1)
		for name, call := range map[string]func(ctx context.Context) error{
			"stop":           func(ctx context.Context) error { return b.StopContainer(ctx, c, time.Second) },
			"stop the pod":   func(ctx context.Context) error { return b.StopPodSandbox(ctx, p) },
			"remove":         func(ctx context.Context) error { return b.RemoveContainer(ctx, c) },
			"remove the pod": func(ctx context.Context) error { return b.RemovePodSandbox(ctx, p) },
		} {
			for _, patience := range []time.Duration{5 * time.Second, time.Hour} {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				began := time.Now()
				err := call(ctx)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has not ended: process 1 traces it") ||
					ctx.Err() != nil || time.Since(began) > 32*time.Second {
					t.Errorf("%s, asked for %v, returned after %v: %v", name, patience, time.Since(began), err)
				}
				cancel()
			}
		}
		b.expect(c, running, 0, "")
		if h := told.holds(); len(h) != 1 || h[0].By != "process 1 traces it" || h[0].Since != time.Second {
			t.Errorf("the timeline has %+v", h)
		}
		info, err := b.ContainerStatus(t.Context(), c, true)
		if err != nil || !strings.Contains(info.GetInfo()["info"], `"held":"process 1 traces it"`) {
			t.Errorf("the status has %v, %v", info, err)
		}
		b.HoldEnd(c, 1) // somebody can end it now; nobody waits
		time.Sleep(time.Minute)
		b.expectLeft(nil)
	})
}

// PROPERTIES 51: the end that a shim has reported is one, however long its release takes. A stop of
// many pods without processes at once reported of each that SIGKILL had not ended its process.
func TestASlowReleaseIsNoProcessThatLives(t *testing.T) {
	for handler, slow := range map[string]string{world.Pinned: "end-shim", "vm": "delete-task", "": "delete-task"} {
		synctest.Test(t, func(t *testing.T) {
			told := make(notes, 1000)
			b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Observer = told })
			p := b.pod("p1", handler)
			b.Stall(slow, "", 100, 5*time.Second)
			if err := b.StopPodSandbox(t.Context(), p); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if h := told.holds(); len(h) > 0 {
				t.Errorf("handler %q, a slow %s: the timeline has %+v", handler, slow, h)
			}
		})
	}
}

// PROPERTIES 51: nor does a call wait for ever for the end of a process in a virtual machine, of which
// the shim alone knows; it is killed again meanwhile. Neither a shim that does not answer to that
// holds up the call for longer.
func TestACallDoesNotWaitForEverForAVirtualMachine(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		inBubble(t, func(t *testing.T, b *bubble) {
			p := b.pod("p1", "vm")
			c := b.run(p, "c1")
			b.HoldEnd(c, -1)
			began := time.Now()
			if hangs {
				time.AfterFunc(500*time.Millisecond, func() { b.Hold("kill-task", c) })
			}
			err := b.StopContainer(t.Context(), c, 0)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "its shim has not reported") || time.Since(began) > 32*time.Second {
				t.Errorf("returned after %v: %v", time.Since(began), err)
			}
			if kills := b.Calls("kill-task", c); kills < 8 {
				t.Errorf("killed %d times", kills)
			}
			b.HoldEnd(c, 0)
		})
	}
}

// Everything that keeps a process from its end is done again while it takes more than once, and
// nothing is done about a process that ends, nor about one that nobody has killed, nor about the
// one that takes the place of another.
func TestMoreIsDoneAboutAnEndThatDoesNotCome(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		held, well, goesOn := b.run(p, "held"), b.run(p, "well"), b.run(p, "goes-on")
		b.HoldEnd(held, 3)
		began := time.Now()
		for _, c := range []string{held, well} {
			if err := b.StopContainer(t.Context(), c, 0); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took < 7*time.Second || took > 9*time.Second {
			t.Errorf("the end came after %v", took)
		}
		time.Sleep(time.Minute)
		if all, of := b.Calls("force", ""), b.Calls("force", world.CgroupOf(held)); all != 3 || of != 3 {
			t.Errorf("forced %d times, %d of them for the one that is held", all, of)
		}
		b.expect(goesOn, running, 0, "")
	})
}

// PROPERTIES 51: a kill that failed was waited for, as long as the attempt might take, which grows to
// five minutes: the end came up to four minutes after it could be brought about.
func TestAKillThatFailedIsNotWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.create(p, ctr("c1"))
		b.Refuse("start-task", c, errors.New("the shim is gone"))
		lift := b.Refuse("signal", c, errors.New("operation not permitted"))
		release := b.Hold("start-task", c)
		go func() { _ = b.StartContainer(context.WithoutCancel(t.Context()), c) }()
		synctest.Wait()
		loaded := b.kill()
		release()
		b = start(t, b.World, loaded)
		started := make(chan error, 1)
		go func() { started <- b.StartContainer(t.Context(), c) }()
		time.Sleep(4 * time.Minute)
		lift()
		began := time.Now()
		if err := <-started; time.Since(began) > 5*time.Second {
			t.Errorf("taken back %v after its process could be killed: %v", time.Since(began), err)
		}
		if b.Calls("delete-task", c) == 0 {
			t.Error("nothing was taken back")
		}
	})
}

// PROPERTIES 51: the same of a process that was made and never started, and of one of which neither
// the kernel nor its shim says anything: the creation of a pod that failed took ten seconds more.
func TestAKillThatFailedOfWhatNeverRanIsNotWaitedFor(t *testing.T) {
	for handler, kill := range map[string]string{"": "signal", "vm": "kill-task"} {
		for _, asked := range []int{0, 1} {
			inBubble(t, func(t *testing.T, b *bubble) {
				b.Fail("start-task", "", 1)
				b.Fail(kill, "", 1)
				b.Fail("get-task", "", asked)
				began := time.Now()
				if _, err := b.RunPodSandbox(t.Context(), config("p1"), handler); err == nil || time.Since(began) > 2*time.Second {
					t.Errorf("handler %q: returned after %v: %v", handler, time.Since(began), err)
				}
				b.expectLeft(nil)
			})
		}
	}
}

// PROPERTIES 51: the shim of a pod has died, and the kernel cannot be asked about its process: that
// no shim knows of it was taken for its end, nothing was killed, and the stop waited for half a
// minute. It was not killed when the kernel could be asked again either.
func TestAKillThatReachedNobodyIsNotWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		b.KillShim(p)
		lift := b.Refuse("watch", p, errors.New("too many open files"))
		b = restart(t, b.World, b.kill())
		began := time.Now()
		err := b.StopPodSandbox(t.Context(), p)
		if err == nil || !strings.Contains(err.Error(), "the kernel cannot tell") || time.Since(began) > time.Second {
			t.Errorf("returned after %v: %v", time.Since(began), err)
		}
		lift()
		if err := b.StopPodSandbox(t.Context(), p); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
		if err := b.RemovePodSandbox(t.Context(), p); err != nil {
			t.Error(err)
		}
		b.expectLeft(nil)
	})
}
