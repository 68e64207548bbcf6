// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/api/services/tasks/v1"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/base/connection"
)

// PauseTask keeps the processes of a task from running. It reports whether the shim was asked for
// that: if so, some of them may be frozen even after an error, and the caller undoes it. The shim
// is not asked if the task does not run, for example because another client has paused it. The
// class of an error is for the client alone.
func (c *Containerd) PauseTask(ctx context.Context, id string) (asked bool, err error) {
	p, err := c.taskStatus(ctx, id)
	if err != nil {
		return false, fmt.Errorf("pause task %s: does it run? %w", id, err)
	}
	if st := p.GetStatus(); st != task.Status_RUNNING {
		return false, fmt.Errorf("pause task %s: it is %s: %w", id, st, errdefs.ErrFailedPrecondition)
	}
	_, err = askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*emptypb.Empty, error) {
		return c.client.TaskService().Pause(ctx, &tasks.PauseTaskRequest{ContainerID: id})
	})
	if err != nil {
		return true, fmt.Errorf("pause task %s: %w", id, refusal(connection.Native(err)))
	}
	return true, nil
}

// ResumeTask lets the processes of a paused task run on. A task that is not paused, or that is not
// there, is a success.
func (c *Containerd) ResumeTask(ctx context.Context, id string) error {
	p, err := c.taskStatus(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resume task %s: is it paused? %w", id, err)
	}
	if st := p.GetStatus(); st != task.Status_PAUSED && st != task.Status_PAUSING {
		return nil
	}
	_, err = askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*emptypb.Empty, error) {
		return c.client.TaskService().Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: id})
	})
	if err = connection.Native(err); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("resume task %s: %w", id, err)
	}
	return nil
}

// CheckpointTask makes CRIU write the state of the processes of a task into the directory images,
// and its log into work. The processes are left as they are. It returns ErrFailedPrecondition if
// CRIU is absent, or cannot do it.
func (c *Containerd) CheckpointTask(ctx context.Context, id, images, work string) error {
	opts, err := typeurl.MarshalAnyToProto(&runcoptions.CheckpointOptions{
		// the connections end where it is restored; the checkpoint is for looking at
		OpenTcp:             true,
		ExternalUnixSockets: true,
		FileLocks:           true,
		ImagePath:           images,
		WorkPath:            work,
	})
	if err != nil {
		return fmt.Errorf("encode options of a checkpoint: %w", err)
	}
	_, err = askShim(connection.Namespaced(ctx), c.asker, id, func(ctx context.Context) (*tasks.CheckpointTaskResponse, error) {
		return c.client.TaskService().Checkpoint(ctx, &tasks.CheckpointTaskRequest{ContainerID: id, Options: opts})
	})
	if err == nil {
		return nil
	}
	err = refusal(connection.Native(err))
	if says(err, noCRIU, id) {
		return fmt.Errorf("checkpoint task %s: CRIU is not installed on this node; install the package criu: %w", id, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("checkpoint task %s: %w%s", id, err, reason(work, "dump.log"))
}

// reason returns the first error in one of CRIU's logs, which are removed together with the
// directory.
func reason(work, name string) string {
	f, err := os.Open(filepath.Join(work, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte("Error")) {
			return "; CRIU: " + strings.TrimSpace(string(line[:min(len(line), 500)]))
		}
	}
	return ""
}
