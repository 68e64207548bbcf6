// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// shimTimeout is how long a shim may take to end by itself once its last task was deleted.
const shimTimeout = time.Second

// shims holds the shim process of each pod by a pidfd, from when the pod's first task is known
// until the pod's sandbox object is deleted.
type shims struct {
	mu      sync.Mutex
	of      map[string]shim // by pod ID
	bundles []string        // directories of bundles that shims work in
}

type shim struct {
	pid, fd int
	// awaited is since when its end is waited for; zero: it is not. One attempt of a release may
	// have less time than the shim.
	awaited time.Time
}

// remember notes which process is the shim of a pod. child is a process that the shim made: the
// kernel says who its parent is, which nothing in a pod can change, and the parent says for which
// pod it is a shim. It does nothing for a pod whose shim is known, and where the parent is not its
// shim: a shim that has died leaves its children to init, and the process of a VM runtime may
// belong to somebody else.
func (s *shims) remember(pod string, child uint32) {
	if child == 0 || s.knows(pod) {
		return
	}
	if pid, err := parent(child); err == nil {
		s.add(pod, pid)
	}
}

// add notes that a process is the shim of a pod, if the process says so itself.
func (s *shims) add(pod string, pid int) {
	if pid <= 1 {
		return
	}
	own, err := readPlace(procfs, "self")
	if err != nil {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	p, ok := recognise(procfs, pid, own, nil)
	if !ok || !isShim(p.args, pod) || !s.put(pod, shim{pid: pid, fd: fd}) {
		_ = unix.Close(fd)
		return
	}
	cwd, err := os.Readlink(fmt.Sprintf("%s/%d/cwd", procfs, pid))
	if err != nil {
		return
	}
	dir := filepath.Dir(cwd) + "/"
	if before, ok := strings.CutSuffix(dir, sandboxDir); ok {
		dir = before + taskDir
	}
	if strings.HasSuffix(dir, taskDir) {
		s.learn(dir)
	}
}

func (s *shims) learn(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.bundles, dir) {
		s.bundles = append(s.bundles, dir)
	}
}

// bundleDirs are the directories of bundles that shims work in.
func (s *shims) bundleDirs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bundles)
}

func (s *shims) knows(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.of[pod]
	return ok
}

// put reports whether the pod had no shim.
func (s *shims) put(pod string, p shim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.of[pod]; ok {
		return false
	}
	if s.of == nil {
		s.of = map[string]shim{}
	}
	s.of[pod] = p
	return true
}

// program is the file that a pod's shim executes; "" when that is not known or was replaced.
func (s *shims) program(pod string) string {
	s.mu.Lock()
	p, ok := s.of[pod]
	s.mu.Unlock()
	if !ok {
		return ""
	}
	exe, err := os.Readlink(fmt.Sprintf("%s/%d/exe", procfs, p.pid))
	// The process that was asked is the shim if the shim has not ended by now.
	if err != nil || strings.HasSuffix(exe, " (deleted)") || unix.PidfdSendSignal(p.fd, 0, nil, 0) != nil {
		return ""
	}
	return exe
}

// hasEnded reports whether the shim of a pod is known and has ended.
func (s *shims) hasEnded(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.of[pod]
	return ok && ended(context.Background(), p.fd, 0)
}

// take forgets the shim of a pod and hands its descriptor over.
func (s *shims) take(pod string) (shim, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.of[pod]
	delete(s.of, pod)
	return p, ok
}

// parent is the parent of a process. /proc/PID/stat does not take the lock on the process's memory
// map.
func parent(pid uint32) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", procfs, pid))
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses, and may itself contain some: PID (NAME) STATE
	// PPID.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 2 {
		return 0, fmt.Errorf("read parent of process %d: %q", pid, b)
	}
	return strconv.Atoi(f[1])
}

// endShim waits for the end of a pod's shim, which follows the deletion of its last task by itself,
// and kills it when it does not end: it has a task then that containerd does not know of, and would
// stay for ever. A pod whose shim is not known, and a container, have nothing to end.
func (c *Containerd) endShim(ctx context.Context, pod string) error {
	s, ok := c.shims.take(pod)
	if !ok {
		return nil
	}
	if s.awaited.IsZero() {
		s.awaited = time.Now()
	}
	if !ended(ctx, s.fd, shimTimeout-time.Since(s.awaited)) {
		if err := ctx.Err(); err != nil && time.Since(s.awaited) < shimTimeout {
			c.shims.put(pod, s)
			return fmt.Errorf("wait for the shim of pod %s, process %d, to end: %w", pod, s.pid, err)
		}
		c.log.Warn("the shim of a pod that is gone does not end by itself: it is killed", "id", pod, "pid", s.pid)
		if err := unix.PidfdSendSignal(s.fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			c.shims.put(pod, s)
			return fmt.Errorf("kill the shim of pod %s, process %d: %w", pod, s.pid, err)
		}
	}
	_ = unix.Close(s.fd)
	return nil
}

// ended waits for the end of a process, at most for the given time, and reports whether it came. It
// looks once also where there is no time left.
func ended(ctx context.Context, pidfd int, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for wait := 0; ; wait = 10 {
		if n, err := unix.Poll(fds, wait); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return n > 0
		}
		if ctx.Err() != nil {
			return false
		}
	}
}
