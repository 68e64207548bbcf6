// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"

	shimapi "github.com/containerd/containerd/api/runtime/task/v3"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/base/execproc"
	"berth/internal/engine/aside"
)

// Shim says how the shim of a container is reached without containerd: by the socket that containerd
// has noted in the bundle of the task. That a shim has another client besides containerd is not
// promised, which makes this a trick: it relies on the shim's API of tasks, which is the same for every
// client, and on the file of the bundle. berth's setting streams.keep turns it off. Delete when
// containerd outlives berth, or lets a client go on waiting for a process without it.
func (c *Containerd) Shim(ctx context.Context, container string) (execproc.Shim, error) {
	if err := reachable(ctx, c, container); err != nil {
		return execproc.Shim{}, fmt.Errorf("find the shim of container %s: %w", container, err)
	}
	bundle := c.shims.Bundle(container)
	if bundle == "" {
		return execproc.Shim{}, fmt.Errorf("find the shim of container %s: its bundle is not where berth looks: %w", container, errdefs.ErrNotFound)
	}
	b, err := aside.Bootstrap(bundle)
	if err != nil {
		return execproc.Shim{}, fmt.Errorf("find the shim of container %s: %w", container, err)
	}
	path, ok := strings.CutPrefix(b.GetAddress(), "unix://")
	if !ok || b.GetProtocol() != "ttrpc" {
		return execproc.Shim{}, fmt.Errorf("find the shim of container %s: it speaks %s at %s, and not ttrpc on a Unix socket: %w",
			container, b.GetProtocol(), b.GetAddress(), errdefs.ErrNotImplemented)
	}
	return execproc.Shim{Address: path, Version: int(b.GetVersion())}, nil
}

// Direct speaks with one shim about exec processes. Its methods may be called from any goroutine. A
// shim that has ended has no processes: that is ErrNotFound.
type Direct struct {
	shim execproc.Shim

	mu     sync.Mutex
	client *ttrpc.Client // nil: not connected
	closed bool
}

// NewDirect returns what speaks with a shim. It connects when it is used first. The caller closes it.
func NewDirect(shim execproc.Shim) *Direct { return &Direct{shim: shim} }

// Close ends the connection.
func (d *Direct) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.client != nil {
		_ = d.client.Close()
	}
}

// connect returns the connection, and makes it if there is none but that which broke.
func (d *Direct) connect(ctx context.Context, broken *ttrpc.Client) (*ttrpc.Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("the connection with the shim is closed: %w", errdefs.ErrUnavailable)
	}
	if d.client != nil && d.client != broken {
		return d.client, nil
	}
	if d.client != nil {
		_ = d.client.Close()
		d.client = nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.shim.Address)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("the shim has ended: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("connect with the shim: %w", err)
	}
	d.client = ttrpc.NewClient(conn)
	return d.client, nil
}

// tell makes a call to the shim, and makes it again on another connection if the first one breaks.
func (d *Direct) tell(ctx context.Context, key execproc.Key, verb string, f func(ctx context.Context, t runtimev2.TaskServiceClient) error) error {
	ctx = connection.Namespaced(ctx)
	var broken *ttrpc.Client
	for again := 0; ; again++ {
		client, err := d.connect(ctx, broken)
		if err == nil {
			var t runtimev2.TaskServiceClient
			if t, err = runtimev2.NewTaskClient(client, d.shim.Version); err == nil {
				err = f(ctx, t)
			}
		}
		if errors.Is(err, ttrpc.ErrClosed) && again == 0 && ctx.Err() == nil {
			broken = client
			continue
		}
		if err != nil {
			return fmt.Errorf("%s exec process %s of container %s: %w", verb, key.Exec, key.Container, connection.Native(err))
		}
		return nil
	}
}

// WaitExec returns when an exec process has ended, with its exit code.
func (d *Direct) WaitExec(ctx context.Context, key execproc.Key) (code uint32, err error) {
	err = d.tell(ctx, key, "wait for", func(ctx context.Context, t runtimev2.TaskServiceClient) error {
		r, err := t.Wait(ctx, &shimapi.WaitRequest{ID: key.Container, ExecID: key.Exec})
		code = r.GetExitStatus()
		return err
	})
	return code, err
}

// KillExec kills an exec process.
func (d *Direct) KillExec(ctx context.Context, key execproc.Key) error {
	return d.tell(ctx, key, "kill", func(ctx context.Context, t runtimev2.TaskServiceClient) error {
		_, err := t.Kill(ctx, &shimapi.KillRequest{ID: key.Container, ExecID: key.Exec, Signal: uint32(unix.SIGKILL)})
		return err
	})
}

// DeleteExec deletes an exec process that has ended, or that was never started.
func (d *Direct) DeleteExec(ctx context.Context, key execproc.Key) error {
	return d.tell(ctx, key, "delete", func(ctx context.Context, t runtimev2.TaskServiceClient) error {
		_, err := t.Delete(ctx, &shimapi.DeleteRequest{ID: key.Container, ExecID: key.Exec})
		return err
	})
}

// CloseExecStdin closes the shim's own end of the standard input of an exec process.
func (d *Direct) CloseExecStdin(ctx context.Context, key execproc.Key) error {
	return d.tell(ctx, key, "close standard input of", func(ctx context.Context, t runtimev2.TaskServiceClient) error {
		_, err := t.CloseIO(ctx, &shimapi.CloseIORequest{ID: key.Container, ExecID: key.Exec, Stdin: true})
		return err
	})
}

// ResizeExec sets the size of the terminal of an exec process.
func (d *Direct) ResizeExec(ctx context.Context, key execproc.Key, width, height uint16) error {
	return d.tell(ctx, key, "resize terminal of", func(ctx context.Context, t runtimev2.TaskServiceClient) error {
		_, err := t.ResizePty(ctx, &shimapi.ResizePtyRequest{ID: key.Container, ExecID: key.Exec, Width: uint32(width), Height: uint32(height)})
		return err
	})
}
