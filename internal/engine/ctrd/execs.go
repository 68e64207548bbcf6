// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/base/execproc"
	"berth/internal/host/pidfd"
)

// Execs makes exec processes through an adapter, and asks about them.
type Execs struct {
	c *Containerd

	mu sync.Mutex
	// outlive has the pidfds of processes that can outlive their shim: those of containers whose pods
	// share one. When such a shim dies the containers go on, only the kernel can reach these
	// processes, and each would run as long as its container. That is still so for a process whose
	// start was not answered before the shim died, and for one that an earlier berth started, because
	// its PID is unknown.
	outlive map[execproc.Key]int
}

// NewExecs returns the exec processes of the containers that an adapter has.
func NewExecs(c *Containerd) *Execs { return &Execs{c: c, outlive: map[execproc.Key]int{}} }

// watch keeps hold of an exec process that has been started. A process that cannot be
// identified as a child of the shim is left to the shim.
func (e *Execs) watch(ctx context.Context, key execproc.Key, pid uint32) {
	if pid == 0 || !e.c.shims.Grouped() {
		return
	}
	pod, err := e.c.sharingPod(ctx, key.Container)
	if err != nil || pod == "" {
		return
	}
	fd, err := pidfd.Open(int(pid))
	if err != nil {
		return
	}
	// The descriptor stands for the process that has the PID now: if that is a child of the shim,
	// it is the one that was started.
	if st, err := pidfd.ReadStat(pid); err != nil || !e.c.shims.Is(pod, st.Parent) {
		_ = unix.Close(fd)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outlive[key] = fd
}

// killUnknown kills a process that its shim cannot reach any more, if err, the answer of the shim,
// is ErrNotFound. It returns err, or the error of the kill.
func (e *Execs) killUnknown(key execproc.Key, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	fd, ok := e.outlive[key]
	if !errdefs.IsNotFound(err) || !ok || pidfd.Ask(fd) == pidfd.Gone {
		return err
	}
	if kerr := pidfd.Send(fd, unix.SIGKILL); kerr != nil {
		return fmt.Errorf("kill exec process %s of container %s: %w", key.Exec, key.Container, kerr)
	}
	return err
}

// drop forgets a process.
func (e *Execs) drop(key execproc.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if fd, ok := e.outlive[key]; ok {
		_ = unix.Close(fd)
		delete(e.outlive, key)
	}
}

// sharingPod is the pod of a container that shares its shim with other pods; "" for another one.
func (c *Containerd) sharingPod(ctx context.Context, container string) (string, error) {
	o, err := c.client.ContainerService().Get(connection.Namespaced(ctx), container)
	if err != nil {
		return "", connection.Native(err)
	}
	if o.SandboxID == "" || c.shims.Key(o.SandboxID) == o.SandboxID {
		return "", nil
	}
	return o.SandboxID, nil
}

// withoutShim gives an error of an exec its reason, where the container may well run: the shim that
// its pod shared has died, whether containerd has noticed that or not. Of a container that has
// ended and was released containerd knows as little, so the kernel is asked whether it runs.
func (c *Containerd) withoutShim(ctx context.Context, container string, err error) error {
	if err == nil || !c.shims.Grouped() {
		return err
	}
	gone := errdefs.IsNotFound(err)
	if !gone && !says(err, hungUp, container) {
		return err
	}
	pod, perr := c.sharingPod(ctx, container)
	if perr != nil || pod == "" || gone && !c.runs(container) || !gone && !c.shims.HasEnded(pod) {
		return err
	}
	return fmt.Errorf("the shim that the pod of container %s shared with other pods has died, and nothing can be executed in the container any more; make the container anew: %s: %w",
		container, err.Error(), errdefs.ErrFailedPrecondition)
}
