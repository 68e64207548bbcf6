// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/exit"
)

// givenUp ends the remains of starts that were given up, before their ends are settled.
type givenUp struct{ processes *processes }

// end ends the remains of a start that was given up, because the answer to a start can be lost: the
// container must not be EXITED while its program may run. Facts about its end are evidence from
// then on.
func (g *givenUp) end(ctx context.Context, u *unit) error {
	process := g.processes.observe(u)
	ended, err := g.endAs(ctx, u, process)
	if err != nil {
		return fmt.Errorf("end the remains of the start of %s: %w", u.id, err)
	}
	u.evidence.add(ended, false)
	if process == processAlive {
		return nil // the fact of its end is on its way here
	}
	if known, _ := u.evidence.known(); known.Zero() {
		u.evidence.add(exit.NotStarted(u.id, u.clock.Now(), "it was not started"), false)
	}
	return nil
}

// endAs ends the remains of a start of u, given the kernel's answer about its process, and returns
// the shim's fact about the end; the zero fact if there is none.
func (g *givenUp) endAs(ctx context.Context, u *unit, process observedProcess) (ended exit.Fact, err error) {
	switch process {
	case processAlive:
		if err := g.markUnstarted(ctx, u); err != nil {
			return ended, err
		}
		return ended, absent(u.evidence.kill(func() error {
			return g.processes.kill(u, func() error { return g.processes.kernel.Signal(u.id, unix.SIGKILL) })
		}))
	case processUnreachable:
		if st, err := u.workload.State(ctx); err != nil || !st.Stopped {
			return ended, errors.New("neither the kernel nor its shim can tell whether it lives")
		}
		return g.askShim(ctx, u)
	case processUnknown:
		if u.now().Restoring != "" {
			return g.endRestore(ctx, u)
		}
		if u.process().Pid == 0 {
			return ended, nil // none was made, or none that could have been started
		}
		// It is in a virtual machine. ErrNotFound means that it has ended, maybe by itself.
		if err := g.markUnstarted(ctx, u); err != nil {
			return ended, err
		}
		if err := absent(g.processes.kill(u, func() error { return u.workload.Kill(ctx, unix.SIGKILL) })); err != nil {
			return ended, err
		}
		ended, err = g.askShim(ctx, u)
		return ended, absent(err)
	case processGone:
		if u.now().TakingBack {
			return ended, nil // berth has killed it, before it ran
		}
		ctx, cancel := context.WithTimeout(ctx, measureTimeout)
		defer cancel()
		ended, err = g.askShim(ctx, u)
		if absent(err) != nil && u.evidence.endedAlone() {
			return unknownEnd(u, "its start was cut off, its process has ended, and its shim did not report the code"), nil
		}
	}
	return ended, nil
}

// endRestore ends the remains of a restore of u whose start was given up, and returns the fact
// about the end. It is an error as long as the shim may be at work on it, or its process lives. If
// the shim is gone and there is nothing to end, the program may have run and ended, and its code is
// unknown.
func (g *givenUp) endRestore(ctx context.Context, u *unit) (ended exit.Fact, err error) {
	_ = u.evidence.kill(func() error {
		var found bool
		if found, err = g.processes.endRestored(ctx, u); !found {
			return errNoProcess // nothing was killed that this would explain
		}
		u.evidence.mayHaveRun(true) // from its first instant, as below
		return nil
	})
	if err != nil {
		return ended, err
	}
	st, err := u.workload.State(ctx)
	switch {
	case errdefs.IsNotFound(err):
		if u.now().Restoring != "" && u.evidence.endedAlone() {
			return unknownEnd(u, "its restore was cut off and its shim is gone: whether it ran is not known"), nil
		}
		return ended, nil
	case err != nil:
		return ended, err
	case st.Stopped: // a restored program runs from its first instant
		u.evidence.mayHaveRun(true)
		ended, err = g.askShim(ctx, u)
		return ended, absent(err)
	case st.Running:
		u.evidence.mayHaveRun(true)
		return ended, fmt.Errorf("its process %d has not ended yet", st.Pid)
	}
	return ended, nil
}

// unknownEnd returns the fact that the process of u has ended with an unknown code.
func unknownEnd(u *unit, why string) exit.Fact {
	return exit.Fact{ID: u.id, Origin: exit.Audit, Message: why}
}

// markTimeout bounds the question whether the program has run: a stop may wait for the kill.
const markTimeout = 300 * time.Millisecond

// markUnstarted records that the process of u, which is about to be killed, has not run the
// program, if the shim confirms it: should berth be killed as well, the next one does not take its
// end for an exit. If the shim answers that the program has run, that is noted. It returns an error
// if berth ends before the shim could answer, or if the mark could not be recorded: do not kill the
// process then; the next berth asks again.
func (g *givenUp) markUnstarted(ctx context.Context, u *unit) error {
	asked, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	st, err := u.workload.State(asked)
	if ctx.Err() != nil {
		return fmt.Errorf("ask whether %s has run: %w", u.id, ctx.Err())
	}
	if err != nil || st.Stopped {
		return nil
	}
	u.evidence.mayHaveRun(st.Running)
	if st.Running {
		return nil
	}
	return u.markTakingBack()
}

// askShim returns the shim's fact about the end of a process whose start was given up: the start
// may have taken effect, and the program ended by itself. It waits for the end for some seconds,
// and does not ask if a witness has reported the code.
func (g *givenUp) askShim(ctx context.Context, u *unit) (ended exit.Fact, err error) {
	if u.evidence.measured() {
		return ended, nil
	}
	ctx, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	st, err := u.workload.Wait(ctx)
	if err == nil && st.Stopped {
		ended = taskFact(u.id, st)
	}
	return ended, err
}
