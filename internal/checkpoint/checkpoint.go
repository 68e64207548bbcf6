// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

const (
	// DefaultTimeout is how long a checkpoint may take when the request has no timeout.
	DefaultTimeout = time.Minute
	// resumeTimeout bounds one attempt to let a container go on.
	resumeTimeout = 10 * time.Second
	// resumeAgain is the pause between two attempts to let containers go on.
	resumeAgain = time.Second
	// warnAgain is the least time between two warnings that they do not go on.
	warnAgain = time.Minute
	// stopPatience is how long a container that is to be stopped stays frozen if its shim does not
	// answer. On cgroup v1 nothing ends a process that is frozen.
	stopPatience = time.Second
)

// Pods is what is known of containers. Its methods answer from memory.
type Pods interface {
	Target(id string) (pod.Target, error)
	ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
}

// Runtime is containerd, as far as checkpoints need it. Errors wrap the sentinels of errdefs.
type Runtime interface {
	// PauseTask returns ErrFailedPrecondition when it has not paused the task, which may be paused
	// already.
	PauseTask(ctx context.Context, id string) error
	// ResumeTask succeeds for a task that is not paused, or that is not there.
	ResumeTask(ctx context.Context, id string) error
	// CheckpointTask writes CRIU's images of the processes into one directory, and its log into the
	// other. Both exist.
	CheckpointTask(ctx context.Context, id, images, work string) error
	// WriteChanges writes what the writable layer of a container has changed, as a tar.
	WriteChanges(ctx context.Context, snapshotter, key string, w io.Writer) error
	Spec(ctx context.Context, id string) (*specs.Spec, error)
}

// Config is what a Service works on.
type Config struct {
	// Dir is a directory of the Service's own, on a disk with room for the memory of a container.
	// It is made when it is needed.
	Dir     string
	Pods    Pods
	Runtime Runtime
	// Thaw lets the processes of a cgroup run on. Absence is a success.
	Thaw   func(cgroup string) error
	Logger *slog.Logger
}

// Service writes checkpoints. Its methods may be called by any number of goroutines.
type Service struct {
	cfg Config

	wake chan struct{} // holds one "some container may still be paused"

	mu   sync.Mutex
	busy map[string]bool // containers of which a checkpoint is being made
}

// New makes a Service. Run has to run for it, once the records are restored, to let containers go
// on that an earlier berth has paused.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, wake: make(chan struct{}, 1), busy: map[string]bool{}}
	s.wake <- struct{}{}
	return s
}

// Checkpoint writes a checkpoint of a container that runs into a new file. The container goes on.
// timeout 0 is DefaultTimeout. The error is ErrInvalidArgument for a location that cannot be,
// ErrAlreadyExists when something is there, ErrFailedPrecondition when the container does not run
// or CRIU is not installed.
func (s *Service) Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error {
	t, err := s.cfg.Pods.Target(id)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("checkpoint container %q: %w", id, errdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if t.ID == t.PodID {
		return fmt.Errorf("checkpoint container %s: it is a sandbox: %w", t.ID, errdefs.ErrNotFound)
	}
	if err := s.checkpoint(ctx, t, location, timeout); err != nil {
		return fmt.Errorf("checkpoint container %s: %w", t.ID, err)
	}
	return nil
}

func (s *Service) checkpoint(ctx context.Context, t pod.Target, location string, timeout time.Duration) error {
	if err := checkLocation(location); err != nil {
		return err
	}
	if !t.Handler.HostProcess {
		return fmt.Errorf("its runtime handler %q does not run processes of this host, which CRIU needs: %w", t.Handler.Name, errdefs.ErrFailedPrecondition)
	}
	if !t.Running {
		return fmt.Errorf("it does not run: %w", errdefs.ErrFailedPrecondition)
	}
	if isClosed(t.Stopping) {
		return errStopped
	}
	if !s.enter(t.ID) {
		return fmt.Errorf("another checkpoint of it is being made: %w", errdefs.ErrFailedPrecondition)
	}
	defer s.leave(t.ID)
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer end(nil)
	watch.Go(func() {
		select {
		case <-t.Ended:
			end(errEnded)
		case <-t.Stopping:
			end(errStopped)
		case <-ctx.Done():
		}
	})

	dir := filepath.Join(s.cfg.Dir, t.ID)
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(s.cfg.Dir, 0o700), os.Mkdir(dir, 0o700))
	if err == nil {
		err = s.write(ctx, t, dir, location)
	}
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errEnded) || errors.Is(cause, errStopped)) {
		err = cause
	}
	if _, gone := os.Lstat(dir); gone != nil {
		return err
	}
	return errors.Join(err, s.undo(context.WithoutCancel(ctx), t.ID))
}

// errEnded ends the checkpoint of a container that has ended, and errStopped of one that is to end.
var (
	errEnded   = fmt.Errorf("it has ended meanwhile: %w", errdefs.ErrFailedPrecondition)
	errStopped = fmt.Errorf("its stop or its removal was asked for: %w", errdefs.ErrFailedPrecondition)
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// write fills dir and makes the archive of it.
func (s *Service) write(ctx context.Context, t pod.Target, dir, location string) error {
	status, err := s.cfg.Pods.ContainerStatus(ctx, t.ID, false)
	if err != nil {
		return err
	}
	if err := s.describe(ctx, t, status.GetStatus(), dir); err != nil {
		return err
	}
	images := filepath.Join(dir, imagesDir)
	if err := os.Mkdir(images, 0o700); err != nil {
		return err
	}
	if err := s.cfg.Runtime.PauseTask(ctx, t.ID); err != nil {
		if errdefs.IsFailedPrecondition(err) { // whoever has paused it resumes it
			err = errors.Join(err, os.RemoveAll(dir))
		}
		return err
	}
	if err := s.cfg.Runtime.CheckpointTask(ctx, t.ID, images, dir); err != nil {
		return err
	}
	if err := s.changes(ctx, t, filepath.Join(dir, changesFile)); err != nil {
		return err
	}
	if err := s.resume(context.WithoutCancel(ctx), t.ID); err != nil {
		return err // the archive takes a while, and the container need not wait for it
	}
	return publish(location, func(w io.Writer) error { return pack(ctx, w, dir, status.GetStatus().GetLogPath()) })
}

func (s *Service) changes(ctx context.Context, t pod.Target, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(s.cfg.Runtime.WriteChanges(ctx, t.Snapshotter, t.ID, f), f.Close())
}

// resume lets a container go on. The shim may not know that it is paused: when the call to pause it
// is cut off, the OCI runtime is killed, which may have frozen the processes by then. A container
// that is to be stopped goes on also if its shim does not answer, which may be at work on the
// checkpoint yet.
func (s *Service) resume(ctx context.Context, id string) error {
	t, unknown := s.cfg.Pods.Target(id) // a record that cannot be read does not keep it paused
	err := s.resumeTask(ctx, id, t.Stopping)
	if err != nil && !isClosed(t.Stopping) {
		return err
	}
	if unknown != nil && !errdefs.IsNotFound(unknown) {
		return unknown
	}
	if !t.Running || t.Process.Cgroup == "" {
		return err
	}
	return errors.Join(err, s.cfg.Thaw(t.Process.Cgroup))
}

// resumeTask makes one attempt to resume a task, which is cut short by a stop.
func (s *Service) resumeTask(ctx context.Context, id string, stopping <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
	defer cancel()
	done := make(chan struct{})
	var watch sync.WaitGroup
	defer watch.Wait()
	defer close(done)
	watch.Go(func() {
		select {
		case <-stopping:
		case <-done:
			return
		}
		select {
		case <-time.After(stopPatience):
			cancel()
		case <-done:
		}
	})
	return s.cfg.Runtime.ResumeTask(ctx, id)
}

// undo lets the container go on, and removes the directory that says that it may be paused. If the
// container cannot be resumed, the directory stays, and Run tries again.
func (s *Service) undo(ctx context.Context, id string) error {
	if err := s.resume(ctx, id); err != nil {
		return fmt.Errorf("the container may stay paused until this succeeds, which berth tries again: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(s.cfg.Dir, id)); err != nil {
		return fmt.Errorf("remove what is left of a checkpoint: %w", err)
	}
	return nil
}

// Run resumes the containers that a berth which was killed had paused, and those that this berth
// could not resume, and removes what is left of their checkpoints. It tries until it succeeds, and
// ends with ctx.
func (s *Service) Run(ctx context.Context) error {
	var warned time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		}
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil && time.Since(warned) >= warnAgain {
			warned = time.Now()
			s.cfg.Logger.Warn("a container may still be paused after a checkpoint", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resumeAgain):
		}
	}
}

// sweep undoes every checkpoint that is not being made now.
func (s *Service) sweep(ctx context.Context) error {
	list, err := os.ReadDir(s.cfg.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list checkpoints that were cut off: %w", err)
	}
	var errs []error
	for _, e := range list {
		if !s.enter(e.Name()) {
			continue
		}
		if err := s.undo(ctx, e.Name()); err != nil {
			errs = append(errs, err)
		} else {
			s.cfg.Logger.Info("a checkpoint that was cut off is removed; its container goes on", "id", e.Name())
		}
		s.leave(e.Name())
	}
	return errors.Join(errs...)
}

func (s *Service) enter(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[id] {
		return false
	}
	s.busy[id] = true
	return true
}

// leave is called after undo. What could not be undone is left to Run, which passes over what is
// busy.
func (s *Service) leave(id string) {
	s.mu.Lock()
	delete(s.busy, id)
	s.mu.Unlock()
	if _, err := os.Lstat(filepath.Join(s.cfg.Dir, id)); err != nil {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
