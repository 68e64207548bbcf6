// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/connection"
	"berth/internal/pidfd"
)

// shimRuncRoot is where the shim has runc keep its records when nobody says otherwise.
const shimRuncRoot = "/run/containerd/runc"

// endOrphans ends what may be left of a task that containerd does not know: a shim that was being
// started when containerd was killed, before containerd wrote down how to reach it; an OCI runtime
// that was killed half-way, or that did its work when nobody was left to take its answer; the
// process, the record and the control group that the runtime made.
func (c *Containerd) endOrphans(ctx context.Context, id string) error {
	o, err := c.client.ContainerService().Get(ctx, id)
	if err != nil && !errdefs.IsNotFound(connection.Native(err)) {
		return fmt.Errorf("end what is left of %s: %w", id, connection.Native(err))
	}
	var opts runcoptions.Options
	var spec specs.Spec
	if err == nil {
		// The options of runtimes that are not of runc's kind are of another type and name no
		// binary.
		_ = typeurl.UnmarshalTo(o.Runtime.Options, &opts)
		if err := typeurl.UnmarshalTo(o.Spec, &spec); err != nil {
			return fmt.Errorf("end what is left of %s: decode its spec: %w", id, err)
		}
	}
	binary := cmp.Or(opts.GetBinaryName(), "runc")
	if err := c.endOrphanProcesses(ctx, id, filepath.Base(binary)); err != nil {
		return fmt.Errorf("end what is left of %s: %w", id, err)
	}
	root := filepath.Join(cmp.Or(opts.GetRoot(), shimRuncRoot), connection.Namespace)
	_, err = os.Stat(filepath.Join(root, id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end what is left of %s: %w", id, err)
	}
	if err == nil {
		c.log.Warn("the OCI runtime has a container that containerd does not know: it is deleted", "id", id)
		if out, err := exec.CommandContext(ctx, binary, "--root", root, "delete", "--force", id).CombinedOutput(); err != nil {
			return fmt.Errorf("end what is left of %s: %s delete: %w: %s", id, binary, err, bytes.TrimSpace(out))
		}
	}
	if err := removeBundle(id, c.shims.bundleDirs()); err != nil {
		return fmt.Errorf("end what is left of %s: %w", id, err)
	}
	if spec.Linux != nil && (strings.HasSuffix(spec.Linux.CgroupsPath, "/"+id) || strings.HasSuffix(spec.Linux.CgroupsPath, ":"+id)) {
		if _, err := cgroup.RemoveAll(ctx, spec.Linux.CgroupsPath); err != nil {
			return fmt.Errorf("end what is left of %s: %w", id, err)
		}
	}
	return nil
}

// endOrphanProcesses waits for containerd's clean-up after a shim that died, and kills the shim and
// the OCI runtimes that work for a container. The clean-up is not to be cut off: the bundle, which
// containerd removes after it, would stay.
func (c *Containerd) endOrphanProcesses(ctx context.Context, id, runtime string) error {
	found, err := c.processes.find(ctx, c, runtime)
	if err != nil {
		return err
	}
	err = c.processes.each(found, func(args []string) bool { return isCleanup(args, id) }, func(pid, fd int) error {
		if pidfd.WaitEnd(ctx, fd, time.Hour) == pidfd.Gone {
			return nil
		}
		return fmt.Errorf("containerd may still be cleaning up after its shim, in process %d: %w", pid, errors.Join(ctx.Err(), errdefs.ErrUnavailable))
	})
	if err != nil {
		return err
	}
	meant := func(args []string) bool { return isShim(args, id) || isRuntime(args, runtime, id) }
	return c.processes.each(found, meant, func(pid, fd int) error {
		c.log.Warn("a process works for a container that containerd does not know: it is killed", "id", id, "pid", pid)
		if err := pidfd.Send(fd, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		return nil
	})
}

// isShim recognises a container's shim, and what starts one, by its arguments. IDs are random and
// not shared.
func isShim(args []string, id string) bool { return isOfShim(args, id) && !isCleanup(args, id) }

// isCleanup recognises what containerd runs when a container's shim has died.
func isCleanup(args []string, id string) bool {
	return isOfShim(args, id) && args[len(args)-1] == "delete"
}

func isOfShim(args []string, id string) bool {
	i := slices.Index(args, "-id")
	return strings.HasPrefix(filepath.Base(args[0]), shimPrefix) && i > 0 && i+1 < len(args) && args[i+1] == id
}

// isRuntime recognises an OCI runtime that creates, restores, starts or deletes a container.
func isRuntime(args []string, program, id string) bool {
	return filepath.Base(args[0]) == program && slices.Contains(args[1:], id) && slices.ContainsFunc(args[1:], func(a string) bool {
		return a == "create" || a == "restore" || a == "start" || a == "delete"
	})
}
