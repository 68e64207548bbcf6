// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// resume lets a container go on. The shim may not know that it is paused: when the call to pause it
// is cut off, the OCI runtime is killed, which may have frozen the processes by then. A container
// that is to be stopped goes on also if its shim does not answer, which may be at work on the
// checkpoint yet.
func (s *Service) resume(ctx context.Context, id string) error {
	t, unknown := s.cfg.Pods.Target(id) // a record that cannot be read does not keep it paused
	err := s.resumeTask(ctx, id, t.Stopping)
	if err != nil && !t.IsStopping() {
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

// resumeTask makes one attempt to resume a task; a stop cuts it short.
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

// undo lets the container go on, and removes the directory that notes the pause. If the container
// cannot be resumed, the directory stays, and Run tries again.
func (s *Service) undo(ctx context.Context, id string) error {
	if err := s.resume(ctx, id); err != nil {
		return fmt.Errorf("the container may stay paused until this succeeds, which berth tries again: %w", err)
	}
	if err := os.RemoveAll(s.paused.note(id)); err != nil {
		return fmt.Errorf("remove the remains of a checkpoint: %w", err)
	}
	return nil
}
