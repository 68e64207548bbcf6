// SPDX-License-Identifier: Apache-2.0

// This file holds a trick whole: it ends the remains that containerd has forgotten. It relies on
// details that are not promised: the names and arguments of shims and OCI runtimes, and the
// directory of runc's records. No setting turns it off, because the remains would stay for good.
// Delete when containerd records how to reach a shim before it starts the shim, and finishes after
// its next start each clean-up that was cut off:
// https://github.com/containerd/containerd/issues/5015.

package shims

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

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/host/cgroup"
	"berth/internal/host/pidfd"
)

// shimRuncRoot is the default directory of the shim for the records of the OCI runtime.
const shimRuncRoot = "/run/containerd/runc"

// Task is a task that containerd does not know, with the facts known from elsewhere.
type Task struct {
	ID string
	// Runtime is the program of its OCI runtime; "" for runc.
	Runtime string
	// Root is the directory of its OCI runtime's records; "" for the default of containerd's shim.
	Root string
	// CgroupsPath names its control group as the OCI specification does; "" for none.
	CgroupsPath string
}

// EndLeft ends the remains of a task that containerd does not know: a shim that was being started
// when containerd was killed, before containerd recorded its address; an OCI runtime that was
// killed half-way, or whose answer was lost; the process, the record and the control group that the
// runtime made. If nothing is left, it succeeds.
func (s *Shims) EndLeft(ctx context.Context, t Task) error {
	if s.nowhere {
		return nil
	}
	if err := s.endLeft(ctx, t); err != nil {
		return fmt.Errorf("end the remains of %s: %w", t.ID, err)
	}
	return nil
}

func (s *Shims) endLeft(ctx context.Context, t Task) error {
	binary := cmp.Or(t.Runtime, "runc")
	if err := s.endProcesses(ctx, t.ID, filepath.Base(binary)); err != nil {
		return err
	}
	root := RecordsIn(t.Root)
	_, err := os.Stat(filepath.Join(root, t.ID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		s.log.Warn("OCI runtime has a container unknown to containerd, deleting it", "id", t.ID)
		if out, err := exec.CommandContext(ctx, binary, "--root", root, "delete", "--force", t.ID).CombinedOutput(); err != nil {
			return fmt.Errorf("%s delete: %w: %s", binary, err, bytes.TrimSpace(out))
		}
	}
	dirs, err := s.bundleDirs()
	if err != nil {
		return err
	}
	if err := removeBundle(t.ID, dirs); err != nil {
		return err
	}
	if strings.HasSuffix(t.CgroupsPath, "/"+t.ID) || strings.HasSuffix(t.CgroupsPath, ":"+t.ID) {
		_, err := cgroup.RemoveAll(ctx, t.CgroupsPath)
		return err
	}
	return nil
}

// endProcesses waits for containerd's clean-up after a shim that died, and kills the shim and
// the OCI runtimes that work for a container. The clean-up is not to be cut off: the bundle, which
// containerd removes after it, would stay.
func (s *Shims) endProcesses(ctx context.Context, id, runtime string) error {
	found, err := s.processes.find(ctx, runtime)
	if err != nil {
		return err
	}
	err = s.processes.each(found, func(args []string) bool { return isCleanup(args, id) }, func(pid, fd int) error {
		if pidfd.WaitEnd(ctx, fd, time.Hour) == pidfd.Gone {
			return nil
		}
		return fmt.Errorf("containerd may still be cleaning up after its shim, in process %d: %w", pid, errors.Join(ctx.Err(), errdefs.ErrUnavailable))
	})
	if err != nil {
		return err
	}
	meant := func(args []string) bool { return isShim(args, id) || isRuntime(args, runtime, id) }
	return s.processes.each(found, meant, func(pid, fd int) error {
		s.log.Warn("process of a container unknown to containerd, killing it", "id", id, "pid", pid)
		if err := pidfd.Send(fd, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		return nil
	})
}

// isShim recognises a container's shim, and the program that starts one, by its arguments. IDs are
// random and not shared.
func isShim(args []string, id string) bool { return isOfShim(args, id) && !isCleanup(args, id) }

// isCleanup recognises the program that containerd runs when a container's shim has died.
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
