// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
	"berth/internal/heart/state"
	"berth/internal/host/logs"
	"berth/internal/host/spec"
)

// output owns the stdio of containers: it makes and reopens it, pumps it into the log and releases
// it.
type output struct {
	stdios  Stdios
	files   Files
	kernel  Kernel
	ops     *operations
	maxLine int
	obs     Observer
}

func (o *output) options(u *unit) logs.Options {
	opts := StdioOptions(o.files.IO(u.id), u.pod.sandbox, u.container, o.maxLine)
	opts.Note = func(e event.Event) { o.obs.Note(u.id, e) }
	opts.Pipe = func(inode uint64) (int, error) { return o.kernel.Pipe(u.now().Process.Process, inode) }
	if !opts.Stdin || opts.Terminal { // the shim gives a program that it logs to no stdin
		opts.LoggerProgram = u.handler.Logger
	}
	return opts
}

// StdioOptions returns the stdio options of a container on record, whose stdio is in dir.
func StdioOptions(dir string, sb *state.Sandbox, ct *state.Container, maxLine int) logs.Options {
	cfg := ct.Config
	opts := logs.Options{
		Dir:       dir,
		Stdin:     cfg.GetStdin(),
		StdinOnce: cfg.GetStdinOnce(),
		Stdout:    true,
		Stderr:    !cfg.GetTty(),
		Terminal:  cfg.GetTty(),
		MaxLine:   maxLine,
	}
	_, opts.AnyUser = spec.UserNamespace(sb.Config)
	if ct.LogPath != "" {
		opts.LogDirectory, opts.LogPath = sb.Config.GetLogDirectory(), cfg.GetLogPath()
	}
	return opts
}

// create makes the stdio of a container that is about to be started. Remains of an interrupted
// start are removed first.
func (o *output) create(u *unit) (Stdio, error) {
	if err := o.remove(u); err != nil {
		return nil, err
	}
	s, err := o.stdios.Create(o.options(u))
	if err != nil {
		return nil, err
	}
	u.setStdio(s)
	o.pump(u, s)
	return s, nil
}

// reopen continues with the stdio that an earlier berth made for u. ErrNotFound and nothing to
// reopen are not errors. After any other error the audit tries again while u runs.
func (o *output) reopen(u *unit) error {
	if u.isSandbox() || u.stdio() != nil || !u.now().Holds.Has(state.HoldIO) {
		return nil
	}
	s, err := o.stdios.Open(o.options(u))
	u.unopened.Store(absent(err) != nil)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reopen stdio: %w", err)
	}
	u.setStdio(s)
	o.pump(u, s)
	return nil
}

// pump copies the container's output until it is drained or closed.
func (o *output) pump(u *unit, s Stdio) {
	o.ops.spawn(func() {
		if err := s.Run(o.ops.life); err != nil && !o.ops.stopping() {
			o.obs.Note(u.id, event.LogPumpEnded{Err: err.Error()})
		}
	})
}

// release releases the stdio of u. The task is gone, so there are no writers any more: the rest of
// the pipes is drained first, within the attempt's time.
func (o *output) release(ctx context.Context, u *unit) error {
	if err := o.reopen(u); err != nil && !u.now().Removing {
		return err // there may be output that is not in the log yet
	}
	s := u.stdio()
	if s == nil {
		return o.remove(u)
	}
	wait, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	select {
	case <-s.Drained():
	case <-wait.Done(): // a process holds the output open, or the log cannot be written
		flush, cancel := context.WithTimeout(ctx, logTimeout)
		defer cancel()
		if err := s.Flush(flush); err != nil {
			if !u.now().Removing { // the pump goes on, and so does the lane
				return fmt.Errorf("the log is not written to its end: %w", err)
			}
			o.obs.Note(u.id, event.LogNotDrained{Err: err.Error()})
		}
	}
	return o.discard(u)
}

// discard releases the stdio of u as it is, without draining it.
func (o *output) discard(u *unit) error {
	s := u.stdio()
	if s == nil {
		return o.remove(u)
	}
	if err := s.Remove(); err != nil {
		return err
	}
	u.setStdio(nil)
	return nil
}

// remove removes the stdio of u that is on disk.
func (o *output) remove(u *unit) error {
	if err := o.stdios.RemoveAll(o.files.IO(u.id)); err != nil {
		return fmt.Errorf("remove stdio: %w", err)
	}
	return nil
}

// reopenLog starts a new log file for u after the old one was moved away.
func (o *output) reopenLog(ctx context.Context, u *unit) error {
	s := u.stdio()
	if u.now().Phase != state.Running || s == nil {
		return fmt.Errorf("reopen log of container %s: it is %s, not RUNNING: %w", u.id, u.now().Phase, errdefs.ErrFailedPrecondition)
	}
	return s.Reopen(ctx)
}
