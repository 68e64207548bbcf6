// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/host/pidfd"
)

const (
	procfs = "/proc"
	// shimPrefix begins the names of shim programs.
	shimPrefix = "containerd-shim"
	// searchTimeout is how long a caller waits for a search of /proc, which takes milliseconds.
	searchTimeout = 2 * time.Second
)

// process is a process of the node's: a shim, or an OCI runtime.
type process struct {
	pid  int
	args []string // never empty
}

// processSearch looks over /proc for shims and OCI runtimes. It is needed where containerd knows
// nothing of a task that was, and then only. One search is under way at a time, in a goroutine of
// its own, and serves all who asked before it began.
type processSearch struct {
	proc       string         // where procfs is
	background sync.WaitGroup // of searches, which outlive the calls that began them

	mu       sync.Mutex
	searches bool
	waiting  []searcher
}

type searcher struct {
	programs []string
	found    chan<- searched // buffered
}

type searched struct {
	processes []process
	err       error // if not nil, a process that was not found may exist
}

// find returns the shims of the node and the processes that execute one of the named programs. It
// waits at most searchTimeout. A process that cannot be looked at may be one of them, and makes the
// search fail.
func (s *processSearch) find(ctx context.Context, programs ...string) ([]process, error) {
	found := make(chan searched, 1)
	s.mu.Lock()
	s.waiting = append(s.waiting, searcher{programs, found})
	if !s.searches {
		s.searches = true
		s.background.Go(s.run)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	select {
	case r := <-found:
		if r.err != nil {
			return nil, fmt.Errorf("look over %s for shims: %w", s.proc, r.err)
		}
		return r.processes, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("look over %s for shims: %w: %w", s.proc, ctx.Err(), errdefs.ErrUnavailable)
	}
}

// run searches until there are no waiters.
func (s *processSearch) run() {
	for {
		s.mu.Lock()
		now := s.waiting
		s.waiting = nil
		s.searches = len(now) > 0
		s.mu.Unlock()
		if len(now) == 0 {
			return
		}
		var programs []string
		for _, w := range now {
			programs = append(programs, w.programs...)
		}
		found, err := s.look(programs)
		for _, w := range now {
			w.found <- searched{found, err}
		}
	}
}

func (s *processSearch) look(programs []string) ([]process, error) {
	own, err := readPlace(s.proc, "self")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.proc)
	if err != nil {
		return nil, err
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, ok, err := recognise(s.proc, pid, own, programs)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, p)
		}
	}
	return found, nil
}

// each calls do with a pidfd of each process that is meant. It is still the one that was found. One
// that cannot be reached ends it with an error.
func (s *processSearch) each(found []process, meant func(args []string) bool, do func(pid, fd int) error) error {
	own, err := readPlace(s.proc, "self")
	if err != nil {
		return err
	}
	for _, p := range found {
		if !meant(p.args) {
			continue
		}
		fd, err := pidfd.Open(p.pid)
		if errors.Is(err, pidfd.ErrGone) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", p.pid, err)
		}
		// The values read now are about the process that the descriptor stands for, unless it has
		// ended; then signals to it fail.
		again, ok, err := recognise(s.proc, p.pid, own, []string{filepath.Base(p.args[0])})
		if ok && slices.Equal(again.args, p.args) {
			err = do(p.pid, fd)
		}
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// place is the position of a process on the node.
type place struct {
	user   uint32 // whose it is
	exe    string // its file
	mounts string // its mount namespace
	group  string // /proc/PID/cgroup
}

// recognise reads the arguments of a process if it is a shim or executes one of the programs. They
// name the container that the process works for, and have two weaknesses. A process writes its own:
// a pod in the host's PID namespace can claim anything. And reading them takes the lock on the
// process's memory map (mmap_lock), which a process can hold for as long as it likes, by a hung
// volume for example: the reader then sleeps in the kernel, uninterruptibly. So they are read of
// nothing that a pod runs. The properties that decide are read without that lock, and cannot be
// forged by a pod:
//
//   - /proc/PID/exe: readlink(2) takes the reference under RCU (get_mm_exe_file, since Linux 4.1).
//     The name alone proves little, because a pod has files of its own.
//   - /proc/PID/ns/mnt: a pod is never in the host's mount namespace, and only a pod that is
//     privileged and sees the host's processes can enter it. Within it, the name of exe is the path
//     of a file of the host.
//   - /proc/PID/cgroup: a process leaves its pod's group only by writing to the host's groups.
//   - The owner of /proc/PID, which is its effective user, even if the process may not be dumped,
//     because a user of the host can start a program of any name with any arguments. berth's own
//     user alone starts shims and OCI runtimes.
//
// The same is not true of /proc/PID/environ, maps, and other files that read the process's memory.
//
// A process that has ended is not recognised, nor is one whose program berth may not see (EACCES,
// EPERM): berth may see the programs that it or containerd started. Any other error means that the
// process could not be examined.
func recognise(proc string, pid int, own place, programs []string) (process, bool, error) {
	dir := strconv.Itoa(pid)
	exe, err := os.Readlink(filepath.Join(proc, dir, "exe"))
	if errors.Is(err, fs.ErrPermission) {
		return process{}, false, nil
	}
	if err != nil {
		return process{}, false, unlessEnded(err) // kernel threads have no program, either
	}
	if name := filepath.Base(exe); !strings.HasPrefix(name, shimPrefix) && !slices.Contains(programs, name) {
		return process{}, false, nil
	}
	id, err := readPlace(proc, dir)
	if err != nil || id.exe != exe || id.user != own.user || id.mounts != own.mounts || inPod(id.group, own.group) {
		return process{}, false, unlessEnded(err)
	}
	b, err := os.ReadFile(filepath.Join(proc, dir, "cmdline"))
	if err != nil {
		return process{}, false, unlessEnded(err)
	}
	return process{pid, strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")}, true, nil
}

// unlessEnded returns an error of reading about a process, or nil if it means that the process has
// ended.
func unlessEnded(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func readPlace(proc, pid string) (place, error) {
	exe, err1 := os.Readlink(filepath.Join(proc, pid, "exe"))
	mounts, err2 := os.Readlink(filepath.Join(proc, pid, "ns/mnt"))
	group, err3 := os.ReadFile(filepath.Join(proc, pid, "cgroup"))
	var st unix.Stat_t
	err4 := unix.Stat(filepath.Join(proc, pid), &st)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return place{}, fmt.Errorf("look at process %s: %w", pid, err)
		}
	}
	return place{st.Uid, exe, mounts, string(group)}, nil
}

// podID is an ID of a pod or a container as the name of a control group has it.
var podID = regexp.MustCompile(`[0-9a-f]{64}`)

// inPod reports whether a control group is a pod's or a container's. If this process is in a
// container itself, that container's own does not count.
func inPod(group, own string) bool {
	for _, id := range podID.FindAllString(group, -1) {
		if !strings.Contains(own, id) {
			return true
		}
	}
	return false
}
