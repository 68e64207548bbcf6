// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/host/pidfd"
)

// shimTimeout is how long a shim may take to end by itself once its last task was deleted.
const shimTimeout = time.Second

// Config holds the settings of the room.
type Config struct {
	// StateDir is containerd's volatile directory, or its probable path. The remains of tasks are
	// looked for there and in the directories of running shims of pods, and nowhere else.
	StateDir string
	// Learned is told of a further such directory, which a shim of a pod works below: no API of
	// containerd's names it. [Shims.Learn] takes it back after a restart. It may be nil.
	Learned func(state string)
	// Inside is set if containerd runs in this process: each shim of the node can be found then.
	Inside bool
	// Apart is where shims go from berth's own control group; nil leaves them where they begin.
	Apart  Apart
	Logger *slog.Logger
}

// Shims knows the shim process of each pod by a pidfd, from when the pod's first task is known
// until the pod's sandbox object is deleted, and which pods share one. Its methods may be called
// from any goroutine.
type Shims struct {
	log       *slog.Logger
	processes processSearch
	learned   func(state string)
	nowhere   bool // without a node to look at
	inside    bool
	apart     Apart
	appeared  chan struct{} // a shim is known that was not before

	mu     sync.Mutex
	of     map[string]shim // by key: the ID of a pod, or of a group of pods
	groups groups
	states []string // of containerd's: the configured directory, and those that shims work below
	// doubted are the keys whose shims could not be looked for: they are searched for when they are
	// to end.
	doubted map[string]bool
}

// New returns a Shims that knows of none.
func New(cfg Config) *Shims {
	s := &Shims{
		log:       cfg.Logger,
		processes: processSearch{proc: procfs},
		learned:   cfg.Learned,
		inside:    cfg.Inside,
		apart:     cfg.Apart,
		appeared:  make(chan struct{}, 1),
	}
	s.Learn(cfg.StateDir)
	return s
}

// Nowhere returns a Shims for a simulation, where the machine that it runs on is not the node: it
// looks at no process and no file, knows no shim, and finds nothing that a task has left.
func Nowhere(log *slog.Logger) *Shims { return &Shims{log: log, nowhere: true} }

// Wait waits for the search that is under way, if there is one.
func (s *Shims) Wait() { s.processes.background.Wait() }

type shim struct {
	pid, fd int
	// awaited is since when its end is waited for; zero: it is not. One attempt of a release may
	// have less time than the shim.
	awaited time.Time
}

// Remember notes which process is the shim of a pod. child is a process that the shim made: the
// kernel knows its parent, which a pod cannot change, and the parent's arguments name its pod. It
// does nothing for a pod whose shim is known, and if the parent is not its shim: a shim that has
// died leaves its children to init, and the process of a VM runtime may belong to another program.
func (s *Shims) Remember(pod string, child uint32) {
	if child == 0 || s.nowhere || s.Knows(pod) {
		return
	}
	switch st, err := pidfd.ReadStat(child); {
	case err == nil:
		s.Add(pod, st.Parent)
	case !errors.Is(err, pidfd.ErrGone):
		s.doubt(pod)
	}
}

// Add notes that a process is the shim of a pod, if its arguments confirm that.
func (s *Shims) Add(pod string, pid int) {
	if pid <= 1 || s.nowhere {
		return
	}
	if err := s.tryAdd(pod, pid); err != nil && !errors.Is(err, pidfd.ErrGone) {
		s.doubt(pod)
	}
}

func (s *Shims) tryAdd(pod string, pid int) error {
	own, err := readPlace(procfs, "self")
	if err != nil {
		return err
	}
	fd, err := pidfd.Open(pid)
	if err != nil {
		return err
	}
	key := s.Key(pod)
	p, ok, err := recognise(procfs, pid, own, nil)
	if !ok || !isShim(p.args, key) || !s.put(key, shim{pid: pid, fd: fd}) {
		_ = unix.Close(fd)
		return err
	}
	cwd, err := os.Readlink(fmt.Sprintf("%s/%d/cwd", procfs, pid))
	if err != nil {
		return nil // it is the shim; that it has ended since is seen later
	}
	s.shown(cwd)
	return nil
}

// shown notes containerd's state directory, below which a shim works in a bundle.
func (s *Shims) shown(bundle string) {
	for _, below := range []string{TaskDir, SandboxDir} {
		state, ok := strings.CutSuffix(filepath.Dir(bundle)+"/", below)
		if ok && s.Learn(state) && s.learned != nil {
			s.processes.background.Go(func() { s.learned(state) }) // which may write to a disk
		}
	}
}

// doubt notes that the shim of a pod could not be looked for.
func (s *Shims) doubt(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubted == nil {
		s.doubted = map[string]bool{}
	}
	s.doubted[s.key(pod)] = true
}

// isDoubted reports whether a pod whose shim is not known may have one all the same. A group may
// always have one whose end was not seen: EndLeft ends every process that has the ID of a pod in
// its arguments.
func (s *Shims) isDoubted(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.key(pod)
	_, known := s.of[key]
	g := s.groups.all[key]
	return !known && (s.doubted[key] || g != nil && !g.over)
}

// Learn notes a state directory of containerd's, and reports whether it is a new one.
func (s *Shims) Learn(state string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == "" || slices.Contains(s.states, state) {
		return false
	}
	s.states = append(s.states, state)
	return true
}

// bundleDirs returns the directories of bundles of the containerd that berth works with. The error
// names those that could not be examined.
func (s *Shims) bundleDirs() (dirs []string, err error) {
	s.mu.Lock()
	states := slices.Clone(s.states)
	s.mu.Unlock()
	for _, state := range states {
		below, berr := bundlesBelow(state)
		if berr != nil {
			err = errors.Join(err, fmt.Errorf("look for bundles below %s: %w", state, berr))
		}
		dirs = append(dirs, below...)
	}
	return dirs, err
}

// Knows reports whether the shim of a pod is known. It may have ended.
func (s *Shims) Knows(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.of[s.key(pod)]
	return ok
}

// put reports whether there was no shim of that key.
func (s *Shims) put(key string, p shim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.of[key]; ok {
		return false
	}
	if s.of == nil {
		s.of = map[string]shim{}
	}
	s.of[key] = p
	select {
	case s.appeared <- struct{}{}:
	default:
	}
	delete(s.doubted, key)
	if g := s.groups.all[key]; g != nil {
		g.made, g.over = false, false
	}
	return true
}

// putBack remembers a shim again whose end was not waited for. Another pod that leaves the group
// may have found it meanwhile, by a descriptor of its own.
func (s *Shims) putBack(key string, p shim) {
	if !s.put(key, p) {
		_ = unix.Close(p.fd)
	}
}

// program is the path of the file that a pod's shim executes, where there may be a newer one, or
// none; "" when that is not known.
func (s *Shims) program(pod string) string {
	s.mu.Lock()
	p, ok := s.of[s.key(pod)]
	s.mu.Unlock()
	if !ok {
		return ""
	}
	path, _ := programOf(p)
	return path
}

// programOf returns the path of the file that a shim executes, and whether that was replaced or
// removed; "" if it is unknown.
func programOf(p shim) (path string, replaced bool) {
	exe, err := os.Readlink(fmt.Sprintf("%s/%d/exe", procfs, p.pid))
	// The process that was asked is the shim if the shim has not ended by now.
	if err != nil || pidfd.Send(p.fd, 0) != nil {
		return "", false
	}
	return strings.CutSuffix(exe, " (deleted)")
}

// HasEnded reports whether the shim of a pod is known and has ended.
func (s *Shims) HasEnded(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.of[s.key(pod)]
	return ok && pidfd.Ask(p.fd) == pidfd.Gone
}

// take forgets the shim of a pod and hands its descriptor over, if it serves no other pod. The pod
// has left its group then.
func (s *Shims) take(pod string) (key string, p shim, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key = s.key(pod)
	if s.shared(pod) {
		s.groups.drop(pod)
		return key, shim{}, false
	}
	p, ok = s.of[key]
	delete(s.of, key)
	delete(s.doubted, key)
	return key, p, ok
}

// Forget forgets the shim of a pod because its shim is the process now, unless it already is that
// one, which another pod of its group has started.
func (s *Shims) Forget(pod string, now int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.key(pod)
	old, ok := s.of[key]
	if !ok || old.pid == now && pidfd.Ask(old.fd) != pidfd.Gone {
		return
	}
	delete(s.of, key)
	_ = unix.Close(old.fd)
}

// End waits for the end of a pod's shim, which follows the deletion of its last task by itself, and
// kills it when it does not end: it has a task then that containerd does not know of, and would
// stay for ever. A pod whose shim is not known, and a container, have nothing to end. A shim that
// serves another pod of its group is left alone in any case.
func (s *Shims) End(ctx context.Context, pod string) error {
	if s.isDoubted(pod) && !s.Shared(pod) {
		if err := s.search(ctx, pod); err != nil {
			return fmt.Errorf("end the shim of pod %s: %w", pod, err)
		}
	}
	key, p, ok := s.take(pod)
	if !ok {
		s.Drop(pod)
		return nil
	}
	if p.awaited.IsZero() {
		p.awaited = time.Now()
	}
	switch pidfd.WaitEnd(ctx, p.fd, shimTimeout-time.Since(p.awaited)) {
	case pidfd.Gone:
	case pidfd.CannotTell:
		s.putBack(key, p)
		return fmt.Errorf("wait for the shim of pod %s, process %d, to end: the kernel cannot be asked: %w", pod, p.pid, errdefs.ErrUnavailable)
	case pidfd.Alive:
		if err := ctx.Err(); err != nil && time.Since(p.awaited) < shimTimeout {
			s.putBack(key, p)
			return fmt.Errorf("wait for the shim of pod %s, process %d, to end: %w", pod, p.pid, err)
		}
		s.log.Warn("shim of a removed pod does not end by itself, killing it", "id", pod, "pid", p.pid)
		if err := pidfd.Send(p.fd, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
			s.putBack(key, p)
			return fmt.Errorf("kill the shim of pod %s, process %d: %w", pod, p.pid, err)
		}
	}
	_ = unix.Close(p.fd)
	s.ended(key, pod)
	return nil
}

// ended notes that the shim of a pod has ended, which was the last of its group.
func (s *Shims) ended(key, pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups.all[key]
	s.groups.drop(pod)
	if g != nil {
		n, _ := g.staying() // one may have come back meanwhile, and the next shim is its
		g.over = n == 0
	}
}

// find looks over the node for the shim of a pod, if it is not known.
func (s *Shims) find(ctx context.Context, pod string) {
	if s.nowhere || s.Knows(pod) {
		return
	}
	if err := s.search(ctx, pod); err != nil {
		s.log.Debug("the shim of a pod is not found now", "id", pod, "err", err)
		s.doubt(pod)
	}
}

// search looks over the node for the shim of a pod.
func (s *Shims) search(ctx context.Context, pod string) error {
	found, err := s.processes.find(ctx)
	if err != nil {
		return err
	}
	key := s.Key(pod)
	for _, p := range found {
		if isShim(p.args, key) {
			if err := s.tryAdd(pod, p.pid); err != nil && !errors.Is(err, pidfd.ErrGone) {
				return err
			}
		}
	}
	return nil
}
