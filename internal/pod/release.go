// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/logs"
	"berth/internal/network"
	"berth/internal/state"
)

// due is what a unit that ended has to give back now. An exit frees the process's own things; what
// a person may still want to look at, or the pod's other containers use, goes when the stop or
// the removal was asked for.
func due(u *unit, st *state.Status) state.Hold {
	if !st.Phase.Ended() && (st.Phase != state.Created || !st.Removing) { // CREATED: it never ran
		return 0
	}
	d := state.HoldTask | state.HoldIO
	switch {
	case !u.isSandbox():
		d |= state.HoldSandbox // it kept the ended task from containerd's clean-up, and the task is gone
	case st.Stopping:
		d |= state.HoldNetwork | state.HoldNetNS
	}
	if st.Removing {
		d = ^state.Hold(0)
	}
	return st.Holds & d
}

// release gives back what is due, in order, and records what is gone. Each part is idempotent; what
// fails does not keep later, independent parts from being tried. The error says what remains.
func (c *Controller) release(ctx context.Context, u *unit) error {
	st := u.now()
	want := due(u, st)
	// The network needs nothing of the rest, and its plug-ins take their time.
	task, net := giving{want: want, id: u.id}, giving{want: want, id: u.id}
	var side sync.WaitGroup
	side.Go(func() {
		net.give(state.HoldNetwork, 0, func() error { return c.releaseNetwork(ctx, u) })
		net.give(state.HoldNetNS, state.HoldNetwork, func() error { return c.network.RemoveNS(ctx, u.sandbox.NetNS) })
	})
	task.give(state.HoldTask, 0, func() error { return c.releaseTask(ctx, u) })
	task.give(state.HoldIO, state.HoldTask, func() error { return c.releaseIO(ctx, u) })
	own := giving{want: want, id: u.id, gone: task.gone}
	side.Go(func() {
		own.give(state.HoldSandbox, state.HoldTask, func() error { return c.runtime.DeleteSandbox(ctx, u.id) })
		own.give(state.HoldFiles, state.HoldTask, func() error { return c.removeFiles(u) })
	})
	task.give(state.HoldContainer, state.HoldTask, func() error { return c.runtime.DeleteContainer(ctx, u.id) })
	task.give(state.HoldSnapshot, state.HoldTask|state.HoldContainer, func() error {
		return c.runtime.DeleteSnapshot(ctx, u.container.Snapshotter, u.id)
	})
	side.Wait()
	gone := task.gone | own.gone | net.gone

	err := errors.Join(append(append(task.errs, own.errs...), net.errs...)...)
	u.mu.Lock()
	u.mu.lastErr = err
	u.mu.Unlock()

	if st.Removing && st.Holds&^gone == 0 && err == nil {
		return c.forget(u)
	}
	if gone != 0 {
		if cerr := u.change(func(st *state.Status) bool {
			st.Holds &^= gone
			return true
		}); cerr != nil {
			return errors.Join(err, cerr)
		}
		c.obs.Event(u.id, EventReleased, nil, "what", gone.String(), "holds", u.now().Holds.String())
	}
	return err
}

// giving gives back one thing after the other.
type giving struct {
	want state.Hold // in all
	id   string
	gone state.Hold
	errs []error
}

// give gives back h, if it is wanted and what it rests on is gone.
func (g *giving) give(h, after state.Hold, f func() error) {
	if !g.want.Has(h) || g.want&after&^g.gone != 0 {
		return
	}
	if err := f(); err != nil && !errdefs.IsNotFound(err) {
		g.errs = append(g.errs, fmt.Errorf("release %s of %s: %w", h, g.id, err))
		return
	}
	g.gone |= h
}

// releaseTask ends what may still run and deletes the task.
func (c *Controller) releaseTask(ctx context.Context, u *unit) error {
	// A start in flight still works on the task, even when its process has ended by now.
	if err := u.starting.lock(ctx); err != nil {
		return fmt.Errorf("wait for the start in flight: %w", err)
	}
	defer u.starting.unlock()
	// A process that was made and never started is in no record, and waits for ever if nobody ends it.
	var kerr error
	switch c.seeProcess(u) {
	case processAlive:
		kerr = c.kernel.Signal(u.id, unix.SIGKILL)
	case processUnseen:
		return fmt.Errorf("the kernel cannot say whether process %d of %s lives", u.process().Pid, u.id)
	case processUnknown:
		kerr = c.killBody(ctx, u, unix.SIGKILL)
	case processGone:
	}
	if kerr != nil && !errdefs.IsNotFound(kerr) {
		c.obs.Event(u.id, "what is left of it could not be killed", kerr) // its deletion will tell
	}
	// The kernel is faster than the shim, which refuses to delete what it has not seen end.
	st, err := c.waitBody(ctx, u)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the shim has not seen its end: %w", err)
	}
	if err := c.lastWord(u, st, err); err != nil {
		return err
	}
	if err := c.deleteBody(ctx, u); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	// A process can outlive its shim, and then nobody but the kernel knows of it.
	if err := c.waitGone(ctx, u); err != nil {
		return err
	}
	c.kernel.Forget(u.id)
	return nil
}

// lastWord learns the code from the shim, if nobody else had it, before the task is deleted and the code with it.
func (c *Controller) lastWord(u *unit, st TaskState, err error) error {
	if known := u.now().Exit; known.Measured || known.Zero() || errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask the shim for the exit code: %w", err)
	}
	u.hear(exit.Fact{ID: u.id, Code: st.Code, Measured: true, At: st.ExitedAt, Origin: exit.Task}, false)
	known, _ := u.heard()
	return c.improve(u, known)
}

// waitGone waits until the kernel, where it watches u's process, says that it ended.
func (c *Controller) waitGone(ctx context.Context, u *unit) error {
	for {
		if alive, _ := c.kernel.Look(u.id); !alive {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its process %d lives on: %w", u.process().Pid, ctxError(ctx))
		case <-time.After(10 * time.Millisecond): // rare: its shim is dead, and it was killed just now
		}
	}
}

// releaseIO lets go of stdio. The task is gone, so that nobody writes any more: what is still in
// the pipes is drained first, within the attempt's time.
func (c *Controller) releaseIO(ctx context.Context, u *unit) error {
	s := u.stdio()
	if s == nil {
		return logs.RemoveAll(c.ioDir(u.id))
	}
	wait, cancel := context.WithTimeout(ctx, c.cfg.DrainTimeout)
	defer cancel()
	select {
	case <-s.Drained():
	case <-wait.Done(): // somebody holds the output open, or the log cannot be written
		flush, cancel := context.WithTimeout(ctx, c.cfg.DrainTimeout)
		defer cancel()
		if err := s.Flush(flush); err != nil {
			if !u.now().Removing { // the pump goes on, and so does the lane
				return fmt.Errorf("the log is not written to its end: %w", err)
			}
			c.obs.Event(u.id, "log not drained to its end", err)
		}
	}
	if err := s.Remove(); err != nil {
		return err
	}
	u.setStdio(nil)
	return nil
}

func (c *Controller) releaseNetwork(ctx context.Context, u *unit) error {
	var r network.Result
	if n := u.now().Network; n != nil {
		r = network.Result{IPs: n.IPs, Raw: n.Result, Conf: n.Conf}
	}
	return c.network.Teardown(ctx, c.netPod(u.sandbox), r)
}

// removeFiles unmounts and removes the unit's own directories.
func (c *Controller) removeFiles(u *unit) error {
	var errs []error
	for _, dir := range c.ownDirs(u) {
		for _, m := range c.ownMounts(u) {
			if err := unmount(m); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// forget deletes the record: nothing is held any more.
func (c *Controller) forget(u *unit) error {
	ch := state.DeleteContainer(u.id)
	if u.isSandbox() {
		if n := u.seal(); n > 0 {
			return fmt.Errorf("remove sandbox %s: %d containers are still being removed", u.id, n)
		}
		ch = state.DeleteSandbox(u.id)
	}
	if err := u.store.Commit(ch); err != nil {
		return fmt.Errorf("delete record of %s %s: %w", u.kind(), u.id, err)
	}
	c.drop(u)
	c.kernel.Forget(u.id)
	c.tell(u, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	if u.isSandbox() {
		c.feed.Forget(u.id)
	}
	c.obs.Event(u.id, EventRemoved, nil)
	close(u.removed)
	return nil
}

// waitReleased waits until u holds nothing of what. It says what it waited for when ctx ends first.
func (c *Controller) waitRemoved(ctx context.Context, u *unit) error {
	select {
	case <-u.removed:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-u.removed:
		return nil
	default:
	}
	u.mu.Lock()
	last := u.mu.lastErr
	u.mu.Unlock()
	what := strings.Join(u.now().Holds.Names(), ", ")
	err := fmt.Errorf("remove %s %s: still releasing %s; it goes on by itself, ask again: %w", u.kind(), u.id, what, ctxError(ctx))
	if last != nil {
		err = fmt.Errorf("%w (last attempt: %w)", err, last)
	}
	return err
}

func (c *Controller) ioDir(id string) string { return filepath.Join(c.cfg.State, "io", id) }

// ownDirs are the unit's directories: volatile and persistent.
func (c *Controller) ownDirs(u *unit) []string {
	if u.isSandbox() {
		return []string{c.sandboxDir(u.id)}
	}
	return []string{c.volumeDir(u.id)}
}

func (c *Controller) ownMounts(u *unit) []string {
	if u.isSandbox() {
		return []string{filepath.Join(c.sandboxDir(u.id), "shm")}
	}
	return nil
}

func (c *Controller) sandboxDir(id string) string {
	return filepath.Join(c.cfg.State, "sandboxes", id)
}
func (c *Controller) volumeDir(id string) string { return filepath.Join(c.cfg.Root, "volumes", id) }
