// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/exit"
)

// givenUp ends what was made for starts that were given up, before their ends are settled.
type givenUp struct {
	measureTimeout time.Duration
	processes      *processes
}

// end ends what was made for a start that was given up, so that the container is not EXITED while its
// program may run after all: the answer to a start can be lost.
func (g *givenUp) end(ctx context.Context, u *unit) error {
	switch g.processes.observe(u) {
	case processAlive:
		if err := g.markUnstarted(ctx, u); err != nil {
			return err
		}
		err := u.evidence.kill(func() error { return g.processes.kernel.Signal(u.id, unix.SIGKILL) })
		if absent(err) != nil {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
		return nil // the fact of its end is on its way here
	case processUnreachable:
		if st, err := u.workload.State(ctx); err != nil || !st.Stopped {
			return fmt.Errorf("end what was made for the start of %s: neither the kernel nor its shim can say whether it lives", u.id)
		}
		if err := g.askShim(ctx, u); err != nil {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
	case processUnknown:
		if u.now().Restoring != "" {
			if err := g.endRestore(ctx, u); err != nil {
				return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
			}
			break
		}
		if u.process().Pid == 0 {
			break // none was made, or none that could have been started
		}
		// It is in a virtual machine. ErrNotFound says that it has ended, maybe by itself.
		if err := g.markUnstarted(ctx, u); err != nil {
			return err
		}
		err := absent(u.workload.Kill(ctx, unix.SIGKILL))
		if err == nil {
			err = absent(g.askShim(ctx, u))
		}
		if err != nil {
			return fmt.Errorf("end what was made for the start of %s: %w", u.id, err)
		}
	case processGone:
		if u.now().TakingBack {
			break // berth has killed it, before it ran
		}
		ctx, cancel := context.WithTimeout(ctx, g.measureTimeout)
		defer cancel()
		if absent(g.askShim(ctx, u)) != nil && u.evidence.endedAlone() {
			u.evidence.add(exit.Fact{
				ID:      u.id,
				Origin:  exit.Audit,
				Message: "its start was cut off, its process has ended, and its shim did not say how",
			}, false)
		}
	}
	if known, _ := u.evidence.known(); known.Zero() {
		u.evidence.add(exit.NotStarted(u.id, time.Now(), "it was not started"), false)
	}
	return nil
}

// endRestore ends what the restore of u has made, when the start was given up. It is an
// error as long as the shim may be at work on it, or its process lives. Where the shim is gone and
// there is nothing to end, the program may have run and ended: nobody can know.
func (g *givenUp) endRestore(ctx context.Context, u *unit) error {
	var err error
	_ = u.evidence.kill(func() error {
		var found bool
		if found, err = g.processes.endRestored(ctx, u); !found {
			return errNoProcess // nothing was killed that this would explain
		}
		return nil
	})
	if err != nil {
		return err
	}
	st, err := u.workload.State(ctx)
	switch {
	case errdefs.IsNotFound(err):
		if u.now().Restoring != "" && u.evidence.endedAlone() {
			u.evidence.add(exit.Fact{
				ID:      u.id,
				Origin:  exit.Audit,
				Message: "its restore was cut off and its shim is gone: whether it ran is not known",
			}, false)
		}
		return nil
	case err != nil:
		return err
	case st.Stopped:
		return absent(g.askShim(ctx, u))
	case st.Running:
		return fmt.Errorf("its process %d has not ended yet", st.Pid)
	}
	return nil
}

// markTimeout bounds the question whether the program has run: a stop may wait for the kill.
const markTimeout = 300 * time.Millisecond

// markUnstarted records that the process of u, which is about to be killed, has not run the
// program, if the shim says so: should berth be killed as well, the next one does not take its end
// for an exit. An error says that berth ends before the shim could answer, or that it could not be
// recorded: nothing is to be killed then, and the next berth asks again.
func (g *givenUp) markUnstarted(ctx context.Context, u *unit) error {
	asked, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	st, err := u.workload.State(asked)
	if ctx.Err() != nil {
		return fmt.Errorf("ask whether %s has run: %w", u.id, ctx.Err())
	}
	if err != nil || st.Running || st.Stopped {
		return nil
	}
	return u.markTakingBack()
}

// askShim asks the shim how the process of a start that was given up ended, unless a witness has
// reported the code: the start may have taken effect, and the program ended by itself.
func (g *givenUp) askShim(ctx context.Context, u *unit) error {
	if u.evidence.measured() {
		return nil
	}
	st, err := u.workload.Wait(ctx)
	if err == nil && st.Stopped {
		u.evidence.add(taskFact(u.id, st), false)
	}
	return err
}
