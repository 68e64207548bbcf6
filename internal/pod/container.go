// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/exit"
	"berth/internal/logs"
	"berth/internal/state"
)

// CreateContainer makes a container in a READY sandbox and returns its ID. Nothing runs yet.
func (c *Controller) CreateContainer(ctx context.Context, podID string, config *runtimeapi.ContainerConfig) (string, error) {
	p, err := c.find(podID, true)
	if err != nil {
		return "", err
	}
	if err := isReady(p); err != nil {
		return "", fmt.Errorf("create container %s: %w", config.GetMetadata().GetName(), err)
	}
	return c.join(ctx, containerName(p.id, config.GetMetadata()), config, func(ctx context.Context, id string) error {
		return c.createContainer(ctx, id, p, config)
	})
}

func isReady(p *unit) error {
	if st := p.now(); st.Phase != state.Ready || st.Stopping {
		phase := st.Phase
		if st.Stopping {
			phase += ", stopping"
		}
		return fmt.Errorf("sandbox %s is not READY but %s; run a new one: %w", p.id, phase, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (c *Controller) createContainer(ctx context.Context, id string, p *unit, config *runtimeapi.ContainerConfig) error {
	name := config.GetMetadata().GetName()
	img, err := c.images.Resolve(imageRef(config))
	if err != nil {
		return fmt.Errorf("create container %s: %w", name, err)
	}
	logPath, err := c.logPath(p, config)
	if err != nil {
		return fmt.Errorf("create container %s: %w", name, err)
	}
	now := time.Now()
	ct := state.Container{
		ID: id, PodID: p.id, Handler: p.handler.Name, ImageID: img.ID, ImageRef: img.Ref, Snapshotter: img.Snapshotter,
		LogPath: logPath, CreatedAt: now, Config: config, StopSignal: stopSignal(config, img),
	}
	holds := state.HoldTask | state.HoldIO | state.HoldContainer | state.HoldSnapshot | state.HoldSandbox | state.HoldFiles
	u := newContainer(ct, state.Status{Phase: state.Creating, CreatedAt: now, Holds: holds}, p, c.store)
	_ = u.starting.tryLock() // nobody else knows u yet
	if !c.add(u) {
		return fmt.Errorf("create container %s: sandbox %s is removed: %w", name, p.id, errdefs.ErrNotFound)
	}
	if err := c.store.Commit(state.NewContainer(ct, *u.now())); err != nil {
		close(u.removed)
		c.drop(u)
		u.starting.unlock()
		return fmt.Errorf("create container %s: %w", name, err)
	}
	err = c.makeContainer(ctx, u, img)
	u.starting.unlock()
	if err != nil {
		c.obs.Event(id, "container could not be made", err)
		return errors.Join(fmt.Errorf("create container %s: %w", name, err), c.undo(ctx, u, err))
	}
	c.obs.Event(id, "container CREATED", nil, "took", time.Since(now).String())
	c.tell(u, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return nil
}

func (c *Controller) makeContainer(ctx context.Context, u *unit, img Image) error {
	oci, err := c.containerSpec(ctx, u, img)
	if err != nil {
		return err
	}
	if err := c.runtime.PrepareSnapshot(ctx, img.Snapshotter, u.id, img.ChainID); err != nil {
		return err
	}
	own := u.handler
	own.Sandboxer = "" // nobody but berth's
	if err := c.runtime.CreateSandbox(ctx, u.id, own); err != nil {
		return err
	}
	if err := c.runtime.CreateContainer(ctx, Object{
		ID: u.id, SandboxID: u.pod.id, Image: imageRef(u.container.Config), Handler: u.handler, Spec: oci,
		Snapshotter: img.Snapshotter, SnapshotKey: u.id, Labels: objectLabels(u.container.Config.GetLabels(), kindContainer),
	}); err != nil {
		return err
	}
	return u.change(func(st *state.Status) bool { st.Phase = state.Created; return true })
}

// imageRef is the image that a container asks for.
func imageRef(config *runtimeapi.ContainerConfig) string { return config.GetImage().GetImage() }

func stopSignal(config *runtimeapi.ContainerConfig, img Image) string {
	if s := config.GetStopSignal(); s != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return s.String()
	}
	if s := img.Config.StopSignal; s != "" {
		return s
	}
	return "SIGTERM"
}

// logPath is the container's log on this host; a path that would leave the pod's log directory is refused.
func (c *Controller) logPath(p *unit, config *runtimeapi.ContainerConfig) (string, error) {
	dir, rel := p.sandbox.Config.GetLogDirectory(), config.GetLogPath()
	if dir == "" || rel == "" {
		return "", nil
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("log directory %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("log path %q leaves the pod's log directory: %w", rel, errdefs.ErrInvalidArgument)
	}
	return filepath.Join(dir, rel), nil
}

// StartContainer runs the program of a CREATED container. A container that was started already is
// an error, except for a caller that asks again while the first start is in flight: it waits and
// gets the same success.
func (c *Controller) StartContainer(ctx context.Context, id string) error {
	u, err := c.find(id, false)
	if err != nil {
		return err
	}
	joined := u.launching.Load()
	if err := u.starting.lock(ctx); err != nil {
		return fmt.Errorf("start container %s: another operation on it is in flight: %w", u.id, err)
	}
	st := u.now()
	switch {
	case joined && !st.StartedAt.IsZero():
		u.starting.unlock()
		return nil
	case st.Phase != state.Created || st.Removing:
		u.starting.unlock()
		return fmt.Errorf("start container %s: it is %s, not CREATED: %w", u.id, st.Phase, errdefs.ErrFailedPrecondition)
	}
	if err := isReady(u.pod); err != nil {
		u.starting.unlock()
		return fmt.Errorf("start container %s: %w", u.id, err)
	}
	done := make(chan error, 1)
	u.launching.Store(true)
	if !c.spawn(func() {
		defer u.starting.unlock()
		defer u.launching.Store(false)
		ctx, cancel := c.outlive(ctx)
		defer cancel()
		done <- c.startContainer(ctx, u)
	}) {
		u.launching.Store(false)
		u.starting.unlock()
		return fmt.Errorf("start container %s: %w", u.id, errStopping)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("start container %s: it goes on, ask for its status: %w", u.id, ctxError(ctx))
	}
}

// startContainer needs u.starting held.
func (c *Controller) startContainer(ctx context.Context, u *unit) error {
	began := time.Now()
	proc, err := c.launch(ctx, u)
	if err != nil {
		c.startFailed(u, err)
		return fmt.Errorf("start container %s: %w", u.id, err)
	}
	at := time.Now()
	if err := u.change(func(st *state.Status) bool {
		if st.Phase == state.Created { // not when its exit was settled meanwhile
			st.Phase, st.StartedAt = state.Running, at
		}
		return true
	}); err != nil {
		c.startFailed(u, err)
		return fmt.Errorf("start container %s: %w", u.id, err)
	}
	c.obs.Event(u.id, "container RUNNING", nil, "pid", proc.Pid, "took", time.Since(began).String())
	c.tell(u, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if u.now().Phase.Ended() {
		c.lanes.Offer(u.id, StepRelease) // it is the start that knows of the task's making last
	}
	return nil
}

// launch makes stdio and the task, lets the witnesses see it and starts it.
func (c *Controller) launch(ctx context.Context, u *unit) (state.Process, error) {
	cfg := u.container.Config
	stdio, err := c.stdios.Create(c.logOptions(u))
	if err != nil {
		return state.Process{}, err
	}
	u.setStdio(stdio)
	c.pump(u, stdio)
	stdin, stdout, stderr := stdio.FIFOs()
	pid, err := c.runtime.CreateTask(ctx, TaskRequest{
		ID: u.id, Endpoint: u.pod.now().Endpoint, IO: TaskIO{Stdin: stdin, Stdout: stdout, Stderr: stderr, Terminal: cfg.GetTty()},
		Snapshotter: u.container.Snapshotter, SnapshotKey: u.id,
	})
	if serr := stdio.Started(); err == nil {
		err = serr
	}
	if err != nil {
		return state.Process{}, err
	}
	proc, err := c.watch(u, state.Process{Pid: pid})
	if err != nil {
		return proc, err
	}
	if err := c.recordProcess(u, proc); err != nil {
		return proc, err
	}
	if err := c.runtime.StartTask(ctx, u.id); err != nil {
		return proc, err
	}
	c.waitTask(u)
	return proc, nil
}

// recordProcess writes down the process that is about to run: should berth and the shim both die, nobody else knows of it.
func (c *Controller) recordProcess(u *unit, p state.Process) error {
	u.setProcess(p) // the witnesses may need it before it is on disk
	return u.change(func(st *state.Status) bool { st.Process = p; return true })
}

func (c *Controller) logOptions(u *unit) logs.Options {
	cfg := u.container.Config
	o := logs.Options{
		Dir:      c.ioDir(u.id),
		Stdin:    cfg.GetStdin(),
		Stdout:   true,
		Stderr:   !cfg.GetTty(),
		Terminal: cfg.GetTty(),
		MaxLine:  c.cfg.MaxLogLine,
		Report:   func(what string, err error) { c.obs.Event(u.id, what, err) },
	}
	if u.container.LogPath != "" {
		o.LogDirectory, o.LogPath = u.pod.sandbox.Config.GetLogDirectory(), cfg.GetLogPath()
	}
	if !cfg.GetStdin() || cfg.GetTty() { // the shim gives a program that it logs to no stdin
		o.LoggerProgram = u.handler.Logger
	}
	return o
}

// pump copies the container's output until it is drained or closed.
func (c *Controller) pump(u *unit, s Stdio) {
	c.spawn(func() {
		if err := s.Run(c.life); err != nil && c.life.Err() == nil {
			c.obs.Event(u.id, "log pump ended", err)
		}
	})
}

// startFailed gives up a start; the lane settles it.
func (c *Controller) startFailed(u *unit, why error) {
	c.obs.Event(u.id, "start did not succeed", why)
	if c.life.Err() != nil {
		return // berth stops: whether it was started is seen when it is back
	}
	u.giveUp(why)
	c.lanes.Offer(u.id, StepSettle)
}

// StopContainer asks a container to end, waits for timeout, then kills it, and returns once its exit
// is settled. Timeout 0 kills at once. Stopping what has ended, or is absent, succeeds.
func (c *Controller) StopContainer(ctx context.Context, id string, timeout time.Duration) error {
	u, err := c.find(id, false)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.stopUnit(ctx, u, timeout)
}

// stopUnit ends u's process and waits until its exit is settled. Several may stop at the same
// time: each has its own patience, the least patient kills.
func (c *Controller) stopUnit(ctx context.Context, u *unit, timeout time.Duration) error {
	switch st := u.now(); {
	case st.Phase.Ended():
		c.lanes.Poke(u.id)
		return nil
	case st.Phase == state.Creating || st.Phase == state.Created:
		return c.stopUnstarted(ctx, u)
	}
	c.obs.Event(u.id, "stop asked for", nil, "timeout", timeout.String())
	if timeout > 0 {
		u.mu.Lock()
		u.mu.stopped = true
		u.mu.Unlock()
		if err := c.signal(ctx, u, signalNumber(u)); err != nil && !errdefs.IsNotFound(err) {
			c.obs.Event(u.id, "stop signal not delivered, killing", err)
		} else {
			wait, cancel := context.WithTimeout(ctx, timeout)
			err := c.waitSettled(wait, u)
			cancel()
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
	}
	if err := c.kill(ctx, u); err != nil {
		return err
	}
	return c.waitSettled(ctx, u)
}

// kill ends u's process, and takes it on berth unless it had ended before: what berth kills is not killed for want of memory.
func (c *Controller) kill(ctx context.Context, u *unit) error {
	if alive, watched := c.kernel.Look(u.id); watched && !alive {
		return nil
	}
	u.setKilled(true)
	err := c.signal(ctx, u, unix.SIGKILL)
	if errdefs.IsNotFound(err) {
		u.setKilled(false)
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill %s %s: %w", u.kind(), u.id, err)
	}
	return nil
}

// stopUnstarted waits for a start in flight and, if there was none, marks the container so that it
// never starts: CRI has no word for that, so it stays CREATED until it is removed.
func (c *Controller) stopUnstarted(ctx context.Context, u *unit) error {
	if err := u.starting.lock(ctx); err != nil {
		return fmt.Errorf("stop %s %s: it is still being started: %w", u.kind(), u.id, err)
	}
	u.starting.unlock()
	if p := u.now().Phase; p == u.alive() {
		return c.stopUnit(ctx, u, 0)
	}
	return nil
}

func signalNumber(u *unit) unix.Signal {
	if u.isSandbox() {
		return unix.SIGTERM
	}
	if s, err := parseSignal(u.container.StopSignal); err == nil {
		return s
	}
	return unix.SIGTERM
}

// signal reaches u's process by its pidfd, which needs neither the shim nor containerd, and
// through containerd where the kernel does not watch it.
func (c *Controller) signal(ctx context.Context, u *unit, sig unix.Signal) error {
	err := c.kernel.Signal(u.id, sig)
	if err == nil || !errdefs.IsNotFound(err) {
		return err
	}
	if _, watched := c.kernel.Look(u.id); watched {
		return err // it ended
	}
	err = c.killBody(ctx, u, sig)
	if errdefs.IsNotFound(err) {
		// No process, says containerd, and the kernel knows of none: nobody will report the exit.
		c.Exited(exit.Fact{ID: u.id, Origin: exit.Audit, Message: "its task was gone when it was to be stopped"})
	}
	return err
}

// RemoveContainer removes a container, killing it first if it runs, and waits within ctx until
// everything was given back. Removing what is absent succeeds.
func (c *Controller) RemoveContainer(ctx context.Context, id string) error {
	u, err := c.find(id, false)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.removeUnit(ctx, u)
}

// ReopenContainerLog starts a new log file after the old one was moved away.
func (c *Controller) ReopenContainerLog(ctx context.Context, id string) error {
	u, err := c.find(id, false)
	if err != nil {
		return err
	}
	s := u.stdio()
	if u.now().Phase != state.Running || s == nil {
		return fmt.Errorf("reopen log of container %s: it is %s, not RUNNING: %w", u.id, u.now().Phase, errdefs.ErrFailedPrecondition)
	}
	return s.Reopen(ctx)
}
