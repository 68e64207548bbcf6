// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

const (
	// shimRuncRoot is where the shim has runc keep its records when nobody says.
	shimRuncRoot = "/run/containerd/runc"
	// shimPatience is how long a shim whose last task was deleted may take to end by itself.
	shimPatience = time.Second
)

// endStrays ends what may be left of a task that containerd does not know of: a shim that was just started when
// containerd was killed, before it wrote down how to reach it; an OCI runtime that was killed half-way, or that did its
// work while nobody was there any more to be told; the process, record and control group that it made.
func (c *Containerd) endStrays(ctx context.Context, id string) error {
	o, err := c.client.ContainerService().Get(ctx, id)
	if err != nil && !errdefs.IsNotFound(native(err)) {
		return fmt.Errorf("end strays of %s: %w", id, native(err))
	}
	var opts runcoptions.Options
	var spec specs.Spec
	if err == nil {
		// Of other runtimes than runc's kind, the options are of another type and name no binary.
		_ = typeurl.UnmarshalTo(o.Runtime.Options, &opts)
		if err := typeurl.UnmarshalTo(o.Spec, &spec); err != nil {
			return fmt.Errorf("end strays of %s: decode its spec: %w", id, err)
		}
	}
	binary := opts.GetBinaryName()
	if binary == "" {
		binary = "runc"
	}
	if err := awaitCleanup(ctx, id); err != nil {
		return fmt.Errorf("end strays of %s: %w", id, err)
	}
	if err := endProcesses(func(args []string) bool { return isShim(args, id) || isRuntime(args, filepath.Base(binary), id) }); err != nil {
		return fmt.Errorf("end strays of %s: %w", id, err)
	}
	root := opts.GetRoot()
	if root == "" {
		root = shimRuncRoot
	}
	root = filepath.Join(root, Namespace)
	if _, err := os.Stat(filepath.Join(root, id)); err == nil {
		c.log.Warn("the OCI runtime has a container that containerd does not know of: deleted", "id", id)
		if out, err := exec.CommandContext(ctx, binary, "--root", root, "delete", "--force", id).CombinedOutput(); err != nil {
			return fmt.Errorf("end strays of %s: %s delete: %w: %s", id, binary, err, bytes.TrimSpace(out))
		}
	}
	if err := removeBundle(id); err != nil {
		return fmt.Errorf("end strays of %s: %w", id, err)
	}
	if spec.Linux != nil && strings.HasSuffix(spec.Linux.CgroupsPath, "/"+id) { // else systemd's, which removes them itself
		if err := cgroup.RemoveAll(ctx, spec.Linux.CgroupsPath); err != nil {
			return fmt.Errorf("end strays of %s: %w", id, err)
		}
	}
	return nil
}

// isShim knows a shim, or what starts one, by its arguments; IDs are random and not shared.
func isShim(args []string, id string) bool { return isOfShim(args, id) && !isCleanup(args, id) }

// isCleanup knows what containerd calls once a shim died.
func isCleanup(args []string, id string) bool {
	return isOfShim(args, id) && args[len(args)-1] == "delete"
}

func isOfShim(args []string, id string) bool {
	i := slices.Index(args, "-id")
	return strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") && i > 0 && i+1 < len(args) && args[i+1] == id
}

// isRuntime knows an OCI runtime that creates, starts or deletes the container.
func isRuntime(args []string, binary, id string) bool {
	return filepath.Base(args[0]) == binary && slices.Contains(args[1:], id) && slices.ContainsFunc(args[1:], func(a string) bool {
		return a == "create" || a == "start" || a == "delete"
	})
}

// awaitCleanup waits for containerd's own clean-up after a shim that died. It is not to be cut off: the bundle, which goes after it,
// would stay.
func awaitCleanup(ctx context.Context, id string) error {
	return eachProcess(func(args []string) bool { return isCleanup(args, id) }, func(pid, fd int) error {
		if await(ctx, fd, time.Hour) {
			return nil
		}
		return fmt.Errorf("containerd is still cleaning up after its shim, in process %d: %w", pid, ctx.Err())
	})
}

// endProcesses kills the processes whose arguments are meant.
func endProcesses(meant func(args []string) bool) error {
	return eachProcess(meant, func(pid, fd int) error {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		return nil
	})
}

// endShim waits for the end of a pod's shim, which follows the deletion of its last task by itself, and ends it when it
// does not: it has a task then that containerd does not know of, and would stay for ever.
func (c *Containerd) endShim(ctx context.Context, id string) error {
	err := eachProcess(func(args []string) bool { return isShim(args, id) }, func(pid, fd int) error {
		if await(ctx, fd, shimPatience) {
			return nil
		}
		c.log.Warn("the shim does not end by itself: killed", "id", id, "pid", pid)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("end shim of %s: %w", id, err)
	}
	return nil
}

// await reports whether a process ended within a time.
func await(ctx context.Context, fd int, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for ctx.Err() == nil {
		if n, err := unix.Poll(fds, 10); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
	return false
}

// eachProcess calls do with each process of this host whose arguments are meant. What is read is of the process that fd
// stands for.
func eachProcess(meant func(args []string) bool, do func(pid, fd int) error) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || !meant(arguments(pid)) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it ended meanwhile
		}
		if meant(arguments(pid)) && !inContainer(pid) { // still
			err = do(pid, fd)
		}
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// arguments are a process's; never empty.
func arguments(pid int) []string {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// inContainer reports whether a process is in another PID namespace: whatever its arguments say, it is a pod's then.
func inContainer(pid int) bool {
	own, oerr := os.Readlink("/proc/self/ns/pid")
	its, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/pid"))
	return oerr == nil && err == nil && own != its
}
