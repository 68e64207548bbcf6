// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"berth/internal/base/retry"
	"berth/internal/heart/pod"
)

// Stdio is the stdin, stdout and stderr of a container's own process.
type Stdio interface {
	// Tee begins to copy the container's output from now on.
	Tee() (Tee, error)
	// OpenStdin opens the container's stdin. It is ErrFailedPrecondition where the container has
	// none, or where it was closed.
	OpenStdin() (io.WriteCloser, error)
	// CloseStdin closes berth's end of the container's stdin if the container wants it to end with
	// its first client (stdin_once), and reports whether it did.
	CloseStdin() bool
	// Terminal reports whether the container has a terminal.
	Terminal() bool
}

// Tee is a copy of a container's output. A reader that is too slow loses the oldest part.
type Tee interface {
	// Next waits for output: of stderr, or else of stdout. lost is how many bytes were lost before
	// it. The error is io.EOF at the end of the output.
	Next(ctx context.Context) (output []byte, stderr bool, lost int64, err error)
	// Close ends it. It may be called again.
	Close()
}

// Attach connects a client with a container's own process until that ends or the client is gone.
// The client sees the output from now on.
func (s *Service) Attach(ctx context.Context, id string, stdin io.Reader, stdout, stderr io.WriteCloser,
	terminal bool, resize <-chan remotecommand.TerminalSize,
) error {
	t, err := s.container(id)
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	c := client{stdin, stdout, stderr, resize}
	err = s.visited(ctx, Access{What: "attach", Target: t, Terminal: terminal}, &c, func(ctx context.Context) (int32, error) {
		return 0, s.attach(ctx, t, c)
	})
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	return nil
}

func (s *Service) attach(ctx context.Context, t pod.Target, c client) error {
	stdio, err := s.cfg.Stdio(t.ID)
	if err != nil {
		return err
	}
	place, err := s.enter(s.sessions, t.PodID)
	if err != nil {
		return err
	}
	defer place.leave()
	if err := s.attached(t); err != nil {
		return err
	}
	defer s.detached(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.life, cancel)
	defer stop()
	key := Key{Container: t.ID} // the container's own process
	if c.resize != nil && stdio.Terminal() {
		go s.follow(ctx, key, c.resize, t.Ended)
	}
	if c.stdin != nil {
		to, err := stdio.OpenStdin()
		if err != nil {
			return err
		}
		defer to.Close()
		go s.feed(t.ID, c.stdin, to, stdio)
	}
	return s.watch(ctx, t, c, stdio)
}

// ringCost is the cost of all clients attached to one container: the output that is kept for slow
// ones.
const ringCost = 3 << 19

// attached notes one client of a container more, for the first of which memory is taken.
func (s *Service) attached(t pod.Target) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.attached[t.ID] == 0 {
		if err := s.memory.Take(t.PodID, ringCost); err != nil {
			return err
		}
	}
	s.mu.attached[t.ID]++
	return nil
}

// detached notes one client less.
func (s *Service) detached(t pod.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.attached[t.ID]--; s.mu.attached[t.ID] == 0 {
		delete(s.mu.attached, t.ID)
		s.memory.Give(t.PodID, ringCost)
	}
}

// feed passes on the client's input, and its end if the container wants that.
func (s *Service) feed(container string, from io.Reader, to io.WriteCloser, stdio Stdio) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	if stdio.CloseStdin() {
		s.EndStdin(container)
	}
}

// EndStdin makes the shim close its end of a container's standard input, and does not wait for
// that: a shim that does not answer is asked again until the container has ended. It is called when
// the only client that the input may have is gone (stdin_once), also by a berth that has found it
// like that.
func (s *Service) EndStdin(container string) {
	place, err := s.enterAnyway(s.sessions, container) // which stands for its pod
	if err != nil {
		return // berth stops, and the next one finds the input like that
	}
	go func() {
		defer place.leave()
		for wait := range retry.Doubling(s.stopping, firstWait, lastWait) {
			err := s.closeStdin(container)
			if err == nil || errdefs.IsNotFound(err) {
				return
			}
			if wait == firstWait {
				s.cfg.Logger.Warn("standard input of a container not closed, retrying", "container", container, "err", err)
			}
		}
	}()
}

// closeStdin makes one attempt. A container that has ended needs none.
func (s *Service) closeStdin(container string) error {
	t, err := s.cfg.Target(container)
	if err != nil {
		return err
	}
	if t.HasEnded() {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.life, stepTimeout)
	defer cancel()
	return s.cfg.Processes.CloseExecStdin(ctx, Key{Container: container})
}

// watch passes on the container's output.
func (s *Service) watch(ctx context.Context, t pod.Target, c client, stdio Stdio) error {
	tee, err := stdio.Tee()
	if err != nil {
		return err
	}
	defer tee.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// When the container has ended, all that it wrote is in the log, and so in the tee.
	go func() {
		select {
		case <-t.Ended:
			tee.Close()
		case <-s.stopping:
			cancel(fmt.Errorf("berth stops: %w", errdefs.ErrUnavailable))
		case <-ctx.Done():
		}
	}()
	for {
		b, isErr, lost, err := tee.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return context.Cause(ctx)
		}
		to := c.stdout
		if isErr {
			to = c.stderr
		}
		if lost > 0 && c.stderr != nil {
			if _, err := fmt.Fprintf(c.stderr, "\nberth: %d bytes were not read in time and are lost\n", lost); err != nil {
				return errGone
			}
		}
		if to == nil {
			continue
		}
		if _, err := to.Write(b); err != nil {
			return errGone
		}
	}
}
