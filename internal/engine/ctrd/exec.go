// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/base/connection"
	"berth/internal/base/execproc"
)

// processURL is the type under which shims expect the specification of a process.
const processURL = "types.containerd.io/opencontainers/runtime-spec/1/Process"

// askExec is askShim for a call about an exec process. Such calls are counted by process and not by
// task, so that exec processes do not use up the limit of their container.
func askExec[T any](ctx context.Context, e *Execs, key execproc.Key, verb string, f func(ctx context.Context) (T, error)) (T, error) {
	var v T
	err := e.c.asker.reachable(ctx, key.Container)
	if err == nil {
		v, err = askShim(connection.Namespaced(ctx), e.c.asker, key.String(), f)
	}
	if err != nil {
		return v, fmt.Errorf("%s exec process %s of container %s: %w", verb, key.Exec, key.Container, connection.Native(err))
	}
	return v, nil
}

// CreateExec makes an exec process of a task.
func (e *Execs) CreateExec(ctx context.Context, key execproc.Key, r execproc.Request) error {
	spec, err := json.Marshal(r.Process)
	if err != nil {
		return fmt.Errorf("encode specification of exec process %s: %w", key, err)
	}
	_, err = askExec(ctx, e, key, "create", func(ctx context.Context) (*emptypb.Empty, error) {
		return e.c.client.TaskService().Exec(ctx, &tasks.ExecProcessRequest{
			ContainerID: key.Container,
			ExecID:      key.Exec,
			Stdin:       r.Stdin,
			Stdout:      r.Stdout,
			Stderr:      r.Stderr,
			Terminal:    r.Process.Terminal,
			Spec:        &anypb.Any{TypeUrl: processURL, Value: spec},
		})
	})
	return e.c.withoutShim(ctx, key.Container, err)
}

// StartExec lets an exec process run.
func (e *Execs) StartExec(ctx context.Context, key execproc.Key) error {
	r, err := askExec(ctx, e, key, "start", func(ctx context.Context) (*tasks.StartResponse, error) {
		return e.c.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: key.Container, ExecID: key.Exec})
	})
	if err == nil {
		e.watch(ctx, key, r.GetPid())
	}
	return err
}

// WaitExec returns when an exec process has ended, with its exit code.
func (e *Execs) WaitExec(ctx context.Context, key execproc.Key) (uint32, error) {
	r, err := askExec(ctx, e, key, "wait for", func(ctx context.Context) (*tasks.WaitResponse, error) {
		return e.c.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: key.Container, ExecID: key.Exec})
	})
	return r.GetExitStatus(), err
}

// KillExec kills an exec process, by the kernel where its shim has died.
func (e *Execs) KillExec(ctx context.Context, key execproc.Key) error {
	_, err := askExec(ctx, e, key, "kill", func(ctx context.Context) (*emptypb.Empty, error) {
		return e.c.client.TaskService().Kill(ctx, &tasks.KillRequest{
			ContainerID: key.Container,
			ExecID:      key.Exec,
			Signal:      uint32(unix.SIGKILL),
		})
	})
	return e.killUnknown(key, err)
}

// DeleteExec deletes an exec process that has ended, or that was never started. One whose shim has
// died is ended.
func (e *Execs) DeleteExec(ctx context.Context, key execproc.Key) error {
	_, err := askExec(ctx, e, key, "delete", func(ctx context.Context) (*tasks.DeleteResponse, error) {
		return e.c.client.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: key.Container, ExecID: key.Exec})
	})
	err = e.killUnknown(key, err)
	if err == nil || errdefs.IsNotFound(err) {
		e.drop(key)
	}
	return err
}

// CloseExecStdin closes the shim's own end of the standard input of an exec process, so that the
// process reads EOF once berth has closed its end.
func (e *Execs) CloseExecStdin(ctx context.Context, key execproc.Key) error {
	_, err := askExec(ctx, e, key, "close standard input of", func(ctx context.Context) (*emptypb.Empty, error) {
		return e.c.client.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: key.Container, ExecID: key.Exec, Stdin: true})
	})
	return err
}

// ResizeExec sets the size of the terminal of an exec process.
func (e *Execs) ResizeExec(ctx context.Context, key execproc.Key, width, height uint16) error {
	_, err := askExec(ctx, e, key, "resize terminal of", func(ctx context.Context) (*emptypb.Empty, error) {
		return e.c.client.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{
			ContainerID: key.Container,
			ExecID:      key.Exec,
			Width:       uint32(width),
			Height:      uint32(height),
		})
	})
	return err
}
