// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/pidfd"
)

// shimTimeout is how long a shim may take to end by itself once its last task was deleted.
const shimTimeout = time.Second

// shims holds the shim process of each pod by a pidfd, from when the pod's first task is known
// until the pod's sandbox object is deleted.
type shims struct {
	mu      sync.Mutex
	of      map[string]shim // by pod ID
	bundles []string        // directories of bundles that shims work in
	// doubted are the pods for whose shim nobody could look: it is searched for when it is to end.
	doubted map[string]bool
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
	switch st, err := pidfd.ReadStat(child); {
	case err == nil:
		s.add(pod, st.Parent)
	case !errors.Is(err, pidfd.ErrGone):
		s.doubt(pod)
	}
}

// add notes that a process is the shim of a pod, if the process says so itself.
func (s *shims) add(pod string, pid int) {
	if pid <= 1 {
		return
	}
	if err := s.tryAdd(pod, pid); err != nil && !errors.Is(err, pidfd.ErrGone) {
		s.doubt(pod)
	}
}

func (s *shims) tryAdd(pod string, pid int) error {
	own, err := readPlace(procfs, "self")
	if err != nil {
		return err
	}
	fd, err := pidfd.Open(pid)
	if err != nil {
		return err
	}
	p, ok, err := recognise(procfs, pid, own, nil)
	if !ok || !isShim(p.args, pod) || !s.put(pod, shim{pid: pid, fd: fd}) {
		_ = unix.Close(fd)
		return err
	}
	cwd, err := os.Readlink(fmt.Sprintf("%s/%d/cwd", procfs, pid))
	if err != nil {
		return nil //nolint:nilerr // it is the shim; that it has ended since is seen later
	}
	dir := filepath.Dir(cwd) + "/"
	if before, ok := strings.CutSuffix(dir, sandboxDir); ok {
		dir = before + taskDir
	}
	if strings.HasSuffix(dir, taskDir) {
		s.learn(dir)
	}
	return nil
}

// doubt notes that nobody could look for the shim of a pod.
func (s *shims) doubt(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubted == nil {
		s.doubted = map[string]bool{}
	}
	s.doubted[pod] = true
}

// isDoubted reports whether a pod whose shim is not known may have one all the same.
func (s *shims) isDoubted(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.of[pod]
	return s.doubted[pod] && !known
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
	delete(s.doubted, pod)
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
	if err != nil || strings.HasSuffix(exe, " (deleted)") || pidfd.Send(p.fd, 0) != nil {
		return ""
	}
	return exe
}

// hasEnded reports whether the shim of a pod is known and has ended.
func (s *shims) hasEnded(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.of[pod]
	return ok && pidfd.Ask(p.fd) == pidfd.Gone
}

// take forgets the shim of a pod and hands its descriptor over.
func (s *shims) take(pod string) (shim, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.of[pod]
	delete(s.of, pod)
	delete(s.doubted, pod)
	return p, ok
}

// endShim waits for the end of a pod's shim, which follows the deletion of its last task by itself,
// and kills it when it does not end: it has a task then that containerd does not know of, and would
// stay for ever. A pod whose shim is not known, and a container, have nothing to end.
func (c *Containerd) endShim(ctx context.Context, pod string) error {
	if c.shims.isDoubted(pod) {
		if err := searchShim(ctx, c, pod); err != nil {
			return fmt.Errorf("end the shim of pod %s: %w", pod, err)
		}
	}
	s, ok := c.shims.take(pod)
	if !ok {
		return nil
	}
	if s.awaited.IsZero() {
		s.awaited = time.Now()
	}
	switch pidfd.WaitEnd(ctx, s.fd, shimTimeout-time.Since(s.awaited)) {
	case pidfd.Gone:
	case pidfd.CannotTell:
		c.shims.put(pod, s)
		return fmt.Errorf("wait for the shim of pod %s, process %d, to end: the kernel cannot be asked: %w", pod, s.pid, errdefs.ErrUnavailable)
	case pidfd.Alive:
		if err := ctx.Err(); err != nil && time.Since(s.awaited) < shimTimeout {
			c.shims.put(pod, s)
			return fmt.Errorf("wait for the shim of pod %s, process %d, to end: %w", pod, s.pid, err)
		}
		c.log.Warn("the shim of a pod that is gone does not end by itself: it is killed", "id", pod, "pid", s.pid)
		if err := pidfd.Send(s.fd, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
			c.shims.put(pod, s)
			return fmt.Errorf("kill the shim of pod %s, process %d: %w", pod, s.pid, err)
		}
	}
	_ = unix.Close(s.fd)
	return nil
}

// searchShim looks over the node for the shim of a pod.
func searchShim(ctx context.Context, c *Containerd, pod string) error {
	found, err := c.processes.find(ctx, c)
	if err != nil {
		return err
	}
	for _, p := range found {
		if isShim(p.args, pod) {
			if err := c.shims.tryAdd(pod, p.pid); err != nil && !errors.Is(err, pidfd.ErrGone) {
				return err
			}
		}
	}
	return nil
}
