// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/ops"
)

func TestExecSyncReturnsOutputAndCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = func(p *fakeProcess) uint32 {
			fmt.Fprint(p.stdout, "out")
			fmt.Fprint(p.stderr, "err")
			p.closeOutput()
			return 42
		}
		r, err := w.service.ExecSync(t.Context(), "c1", []string{"ls", "-l"}, 0)
		if err != nil || string(r.Stdout) != "out" || string(r.Stderr) != "err" || r.Code != 42 {
			t.Errorf("got %v %v", r, err)
		}
		if s := w.specs[0]; s.Args[0] != "ls" || s.User.UID != 1234 || s.Cwd != "/tmp" || len(s.Env) != 1 || s.Terminal {
			t.Errorf("the specification is %+v", s)
		}
		w.expectNothingLeft()
	})
}

func TestExecSyncRefusesWhatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if _, err := w.service.ExecSync(t.Context(), "c2", []string{"ls"}, 0); !errdefs.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
		if _, err := w.service.ExecSync(t.Context(), "c1", nil, 0); !errdefs.IsInvalidArgument(err) {
			t.Errorf("got %v", err)
		}
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, -time.Second); !errdefs.IsInvalidArgument(err) {
			t.Errorf("got %v", err)
		}
		w.running = false
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("got %v", err)
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 14: the output is held open by somebody who is not killed.
func TestExecSyncReturnsWithinASecondOfItsTimeout(t *testing.T) {
	for name, hung := range map[string]bool{"the shim answers": false, "the shim hangs": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.program = func(p *fakeProcess) uint32 {
					w.hang(hung)
					<-p.killed
					return 137
				}
				began := time.Now()
				_, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 3*time.Second)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "timed out after 3s") {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
					t.Errorf("it took %s", took)
				}
				w.hang(false)
				time.Sleep(time.Hour)
				w.expectNothingLeft()
			})
		})
	}
}

func TestExecSyncReturnsWhenAShimDoesNotEvenMakeTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hang(true)
		began := time.Now()
		words := make(chan string, 1)
		time.AfterFunc(time.Second/2, func() { // PROPERTIES 65
			all, _ := w.service.cfg.Ops.Snapshot()
			words <- strings.Join(ops.Sentences(all, ops.Object{ID: "c1"}, time.Now()), " ")
		})
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"/bin/ls", "secret"}, time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		said := <-words
		if want := "It runs the command ls: the shim (Exec) has not answered for 1 s; it is given up in 1 s."; said != want {
			t.Errorf("half a second later it was said: %s", said)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
		w.hang(false)
		time.Sleep(time.Hour)
		w.expectNothingLeft()
	})
}

func TestExecSyncDoesNotWaitForAGrandchild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = func(p *fakeProcess) uint32 {
			fmt.Fprint(p.stdout, "started")
			return 0
		}
		r, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0)
		if err != nil || string(r.Stdout) != "started" {
			t.Errorf("got %v %v", r, err)
		}
		w.program = func(p *fakeProcess) uint32 {
			go func() {
				for err := error(nil); err == nil; _, err = fmt.Fprint(p.stdout, "on and on") {
					time.Sleep(100 * time.Millisecond)
				}
			}()
			return 0
		}
		began := time.Now()
		if _, err = w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0); err != nil || time.Since(began) > 2*drainTimeout {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		time.Sleep(time.Second) // the grandchild finds its output closed
		w.expectNothingLeft()
	})
}

// PROPERTIES 12
func TestExecSyncKeepsABoundedPartOfTheOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = func(p *fakeProcess) uint32 {
			b := make([]byte, 1<<20)
			for range 10 {
				_, _ = p.stdout.Write(b)
				_, _ = p.stderr.Write(b)
			}
			p.closeOutput()
			return 0
		}
		r, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(r.Stdout) + len(r.Stderr); n < maxOutput || n > maxOutput+1024 {
			t.Errorf("%d bytes were kept", n)
		}
		if want := fmt.Sprint(20<<20-maxOutput, " bytes were dropped"); !strings.Contains(string(r.Stderr), want) {
			t.Errorf("the standard error does not say %q", want)
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 38: one pod's output left nothing for that of others.
func TestTheOutputOfOnePodLeavesRoomForThatOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		limits := w.service.memory.Usage().Limits
		write := func(pod string, n int64) (kept int64, c *capture) {
			c = &capture{memory: w.service.memory, pod: pod}
			if got, err := c.stdout().Write(make([]byte, n)); int64(got) != n || err != nil {
				t.Errorf("got %d %v", got, err)
			}
			return int64(c.kept), c
		}
		var all []*capture
		for n, want := int64(0), limits.Pod; want > 0; n++ {
			kept, c := write("p1", maxOutput)
			if kept != min(want, maxOutput) {
				t.Errorf("%d: %d bytes were kept, not %d", n, kept, min(want, maxOutput))
			}
			want = limits.Pod - w.service.memory.Of("p1")
			all = append(all, c)
		}
		before := w.service.memory.Usage().Refused
		if kept, c := write("p1", 1); kept != 0 {
			t.Errorf("%d bytes were kept beyond the share", kept)
		} else {
			all = append(all, c)
			_, _ = c.stdout().Write([]byte("more"))
		}
		if n := w.service.memory.Usage().Refused - before; n != 1 {
			t.Errorf("%d refusals are counted for one process", n)
		}
		if kept, c := write("p2", maxOutput); kept != maxOutput {
			t.Errorf("%d bytes were kept for another pod", kept)
		} else {
			all = append(all, c)
		}
		for _, c := range all {
			if n := int64(len(c.result().Stdout)); n != int64(c.kept) {
				t.Errorf("%d bytes are returned, and %d were kept", n, c.kept)
			}
			c.release()
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 3: pods with as many processes as one may have, be it because their shims hang, left
// no process for the probes of any other.
func TestOtherPodsDoNotTakeTheLastProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = func(p *fakeProcess) uint32 {
			p.closeOutput()
			return 0
		}
		limits := w.service.commands.Usage().Limits
		var places []place
		enter := func(pod string) error {
			p, err := w.service.enter(w.service.commands, pod)
			if err == nil {
				places = append(places, p)
			}
			return err
		}
		for n := range limits.Node {
			if err := enter(fmt.Sprint("busy", n%(limits.Node/limits.Pod))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		refused := int64(0)
		for range limits.Pod {
			if errdefs.IsResourceExhausted(enter("p1")) {
				refused++
			}
		}
		if refused != limits.Pod-limits.Sure {
			t.Errorf("%d more were refused", refused)
		}
		for _, p := range places {
			p.leave()
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 12: the processes of one pod are bounded, and it says so.
func TestTooManyProcessesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = untilKilled
		ctx, cancel := context.WithCancel(t.Context())
		refused := 0
		results := make(chan error)
		share := int(w.service.commands.Usage().Pod)
		for range share + 10 {
			go func() {
				_, err := w.service.ExecSync(ctx, "c1", []string{"ls"}, 0)
				results <- err
			}()
		}
		for range 10 {
			if err := <-results; errdefs.IsResourceExhausted(err) {
				refused++
			}
		}
		synctest.Wait()
		if refused != 10 || w.most != share {
			t.Errorf("%d were refused, and there were %d", refused, w.most)
		}
		cancel()
		for range share {
			<-results
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 29: an exec process ends with its container.
func TestAProcessEndsWithItsContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = untilKilled
		go func() {
			time.Sleep(time.Second)
			close(w.ended)
		}()
		r, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0)
		if err != nil || r.Code != 137 {
			t.Errorf("got %v %v", r, err)
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 29: an exec process ends when berth stops.
func TestAProcessEndsWithBerth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = untilKilled
		result := make(chan error)
		go func() {
			_, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0)
			result <- err
		}()
		synctest.Wait()
		go w.stop()
		<-result
		w.stop()
		w.expectNothingLeft()
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0); !errdefs.IsUnavailable(err) {
			t.Errorf("got %v", err)
		}
	})
}

// A shim that does not answer does not keep berth from stopping, and the directory stays for the
// next berth.
func TestStoppingDoesNotWaitForAShim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hang(true)
		began := time.Now()
		result := make(chan error)
		go func() {
			_, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0)
			result <- err
		}()
		synctest.Wait()
		w.stop()
		if err := <-result; err == nil {
			t.Error("the command did not run")
		}
		if took := time.Since(began); took > 2*stopTimeout || w.directories() != 1 {
			t.Errorf("it took %s, and there are %d directories", took, w.directories())
		}
	})
}

// PROPERTIES 4
func TestTheNextBerthEndsWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "c1.gone", "c1.runs", "c1.ended")
		w.expectNothingLeft()
	})
}

func TestADeletionThatFailsIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.failing = 3
		w.program = func(p *fakeProcess) uint32 {
			p.closeOutput()
			return 0
		}
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		w.expectNothingLeft()
	})
}
