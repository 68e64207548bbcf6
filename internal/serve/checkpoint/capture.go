// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

// errEnded ends the checkpoint of a container that has ended, and errStopped of one that is to end.
var (
	errEnded   = fmt.Errorf("it has ended meanwhile: %w", errdefs.ErrFailedPrecondition)
	errStopped = fmt.Errorf("its stop or its removal was asked for: %w", errdefs.ErrFailedPrecondition)
)

// dump is the data read from a container while it was paused.
type dump struct {
	target pod.Target
	status *runtimeapi.ContainerStatus
	dir    string // has the files of the archive
}

// packer returns the function that writes the archive of a dump.
func (d dump) packer(ctx context.Context) func(io.Writer) error {
	return func(w io.Writer) error { return d.pack(ctx, w) }
}

// of names the container that an error is about.
func of(t pod.Target, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("container %s: %w", t.ID, err)
}

// capture reads the processes and the files of containers as they are at one instant: all of them
// are paused before the first one is read, and go on once the last one was. Then it calls write. It
// ends early when one of the containers ends, or its stop is asked for. The unfinished part of
// write is lost.
func (s *Service) capture(ctx context.Context, targets []pod.Target, write func(ctx context.Context, dumps []dump) error) error {
	ctx, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer end(nil)
	var entered []string
	defer func() {
		for _, id := range entered {
			s.paused.leave(id)
		}
	}()
	for _, t := range targets {
		if err := s.mayCapture(t); err != nil {
			return of(t, err)
		}
		if !s.paused.enter(t.ID) {
			return of(t, fmt.Errorf("another checkpoint of it is being made: %w", errdefs.ErrFailedPrecondition))
		}
		entered = append(entered, t.ID)
		watch.Go(func() {
			select {
			case <-t.Ended:
				end(of(t, errEnded))
			case <-t.Stopping:
				end(of(t, errStopped))
			case <-ctx.Done():
			}
		})
	}
	dumps, err := s.read(ctx, targets)
	if err == nil {
		err = write(ctx, dumps)
		for _, d := range dumps { // they go on already; Run removes the rest
			_ = os.RemoveAll(d.dir)
		}
	}
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errEnded) || errors.Is(cause, errStopped)) {
		err = cause
	}
	return err
}

// each calls f with the containers side by side: a shim that hangs keeps no other one paused.
func each(targets []pod.Target, f func(pod.Target) error) error {
	errs := make([]error, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { errs[i] = of(t, f(t)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// mayCapture returns why no checkpoint of a container can be made.
func (s *Service) mayCapture(t pod.Target) error {
	switch {
	case !t.Handler.HostProcess:
		return fmt.Errorf("its runtime handler %q does not run processes of this host, which CRIU needs: %w", t.Handler.Name, errdefs.ErrFailedPrecondition)
	case !t.Running:
		return fmt.Errorf("it does not run: %w", errdefs.ErrFailedPrecondition)
	case t.IsStopping():
		return errStopped
	}
	return nil
}

// read returns a dump of each container, all of which go on. After an error they go on, too, and
// nothing is left of the dumps, or the error names those that may stay paused.
func (s *Service) read(ctx context.Context, targets []pod.Target) (dumps []dump, err error) {
	// how many of them were to be paused; some of the others may be paused by another client
	asked := 0
	defer func() {
		if err == nil {
			return
		}
		for _, t := range targets[asked:] {
			err = errors.Join(err, os.RemoveAll(s.paused.note(t.ID)))
		}
		err = errors.Join(err, each(targets[:asked], func(t pod.Target) error {
			if _, gone := os.Lstat(s.paused.note(t.ID)); gone != nil {
				return nil
			}
			return s.undo(context.WithoutCancel(ctx), t.ID)
		}))
	}()
	for _, t := range targets {
		d, err := s.prepare(ctx, t)
		if err != nil {
			return nil, of(t, err)
		}
		dumps = append(dumps, d)
	}
	for _, d := range dumps {
		asked++
		if err := s.pause(ctx, d); err != nil {
			return nil, of(d.target, err)
		}
	}
	// One after the other: CRIU locks the connections of the network namespace, which they share.
	for _, d := range dumps {
		if err := s.dump(ctx, d); err != nil {
			return nil, of(d.target, err)
		}
	}
	// The archive takes a while, and the containers need not wait for it.
	return dumps, each(targets, func(t pod.Target) error { return s.resume(context.WithoutCancel(ctx), t.ID) })
}

// prepare makes the directory of a dump, with the description of the container.
func (s *Service) prepare(ctx context.Context, t pod.Target) (dump, error) {
	dir := s.paused.note(t.ID)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(s.cfg.Dir, 0o700), os.Mkdir(dir, 0o700)); err != nil {
		return dump{}, err
	}
	status, err := s.cfg.Pods.ContainerStatus(ctx, t.ID, false)
	if err != nil {
		return dump{}, err
	}
	d := dump{target: t, status: status.GetStatus(), dir: dir}
	if err := s.describe(ctx, t, d.status, dir); err != nil {
		return dump{}, err
	}
	return d, os.Mkdir(filepath.Join(dir, imagesDir), 0o700)
}

// pause pauses a container. If the pause fails, it is undone with the directory, which stays for
// that, because a process that does not freeze in time leaves the others frozen.
func (s *Service) pause(ctx context.Context, d dump) error {
	asked, err := s.cfg.Runtime.PauseTask(ctx, d.target.ID)
	if !asked { // the one that paused it resumes it
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}

// dump reads the processes and the files of a container that is paused.
func (s *Service) dump(ctx context.Context, d dump) error {
	if err := s.cfg.Runtime.CheckpointTask(ctx, d.target.ID, filepath.Join(d.dir, imagesDir), d.dir); err != nil {
		return err
	}
	return s.changes(ctx, d.target, filepath.Join(d.dir, changesFile))
}

func (s *Service) changes(ctx context.Context, t pod.Target, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w := newSparse(f, s.cfg.MaxBytes)
	err = s.cfg.Runtime.WriteChanges(ctx, t.Snapshotter, t.ID, w)
	if err == nil {
		err = w.finish()
	}
	return errors.Join(ofDisk(err), f.Close())
}
