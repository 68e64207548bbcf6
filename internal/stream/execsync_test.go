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
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
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

func TestAllExecSyncsTogetherKeepABoundedPartOfTheOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.service.memory = make(chan struct{}, 2)
		var kept []*capture
		for range 3 {
			c := &capture{memory: w.service.memory}
			kept = append(kept, c)
			if n, err := c.stdout().Write(make([]byte, memoryChunk)); n != memoryChunk || err != nil {
				t.Errorf("got %d %v", n, err)
			}
		}
		for i, want := range []int{memoryChunk, memoryChunk, 0} {
			if got := len(kept[i].result().Stdout); got != want {
				t.Errorf("%d: %d bytes were kept, not %d", i, got, want)
			}
			kept[i].release()
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 3: eight containers with as many processes as one may have, be it because their shims
// hang, left no process for the probes of any other.
func TestOtherContainersDoNotTakeTheLastProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = func(p *fakeProcess) uint32 {
			p.closeOutput()
			return 0
		}
		busy := func(n int) string { return fmt.Sprint("busy", n%(maxProcesses/maxProcessesPerContainer)) }
		for n := range maxProcesses {
			if err := w.service.enter(busy(n), false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		refused := 0
		for range maxProcessesPerContainer {
			if err := w.service.enter("c1", false); errdefs.IsResourceExhausted(err) {
				refused++
			}
		}
		if refused != maxProcessesPerContainer-sureProcesses {
			t.Errorf("%d more were refused", refused)
		}
		for range maxProcessesPerContainer - refused {
			w.service.leave("c1")
		}
		for n := range maxProcesses {
			w.service.leave(busy(n))
		}
		w.expectNothingLeft()
	})
}

// PROPERTIES 12: the processes of one container are bounded, and it says so.
func TestTooManyProcessesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.program = untilKilled
		ctx, cancel := context.WithCancel(t.Context())
		refused := 0
		results := make(chan error)
		for range maxProcessesPerContainer + 10 {
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
		if refused != 10 || w.most != maxProcessesPerContainer {
			t.Errorf("%d were refused, and there were %d", refused, w.most)
		}
		cancel()
		for range maxProcessesPerContainer {
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
