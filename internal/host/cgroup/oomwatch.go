// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// OOMWatch notices when the OOM killer may have fired in one of many groups. It has one file
// descriptor and one goroutine, however many groups there are, and no thread: an inotify instance
// on the files memory.events (v2), or one eventfd that is registered with all groups (v1).
type OOMWatch struct {
	v2   bool
	file *os.File

	mu   sync.Mutex
	dirs map[string]string // by ID
	ids  map[int32]string  // by watch descriptor; v2 alone
}

// NewOOMWatch makes a watch. The caller runs it, or closes it.
func NewOOMWatch() (*OOMWatch, error) {
	w := &OOMWatch{v2: V2(), dirs: map[string]string{}, ids: map[int32]string{}}
	var fd int
	var err error
	if w.v2 {
		fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	} else {
		fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		return nil, fmt.Errorf("watch for OOM kills: %w", err)
	}
	w.file = os.NewFile(uintptr(fd), "oom")
	return w, nil
}

// Close ends Run, and the watch of every group. It may be called again.
func (w *OOMWatch) Close() error {
	if err := w.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Watch begins to watch a group under an ID, and replaces the group that was watched under that ID.
// all is true if every kill is noticed. It returns errdefs.ErrNotFound for a group that is gone.
// Cgroup v1 does not notify of kills that follow from the node's own lack of memory.
func (w *OOMWatch) Watch(id, dir string) (all bool, err error) {
	w.Forget(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.v2 {
		if err := w.register(dir); err != nil {
			return false, cannotWatch(dir, err)
		}
		w.dirs[id] = dir
		return false, nil
	}
	wd := 0
	err = control(w.file, func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, filepath.Join(dir, "memory.events"), unix.IN_MODIFY)
		return err
	})
	if err != nil {
		return false, cannotWatch(dir, err)
	}
	w.dirs[id], w.ids[int32(wd)] = dir, id
	return true, nil
}

func cannotWatch(dir string, err error) error {
	if absent(err) {
		err = fmt.Errorf("it is gone: %w", errdefs.ErrNotFound)
	}
	return fmt.Errorf("watch cgroup %s for OOM kills: %w", dir, err)
}

// register makes the kernel write to the eventfd when a limit of the group, or one above it, makes
// the OOM killer fire. The registration ends with the group.
func (w *OOMWatch) register(dir string) error {
	counter, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return err
	}
	defer counter.Close()
	return control(w.file, func(fd int) error {
		return os.WriteFile(filepath.Join(dir, "cgroup.event_control"), fmt.Appendf(nil, "%d %d", fd, counter.Fd()), 0)
	})
}

// control calls f with the descriptor of a file, which stays as it is.
func control(file *os.File, f func(fd int) error) error {
	c, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	err = c.Control(func(fd uintptr) { ferr = f(int(fd)) })
	return errors.Join(err, ferr)
}

// Forget ends the watch of an ID. One that is not watched is a success.
func (w *OOMWatch) Forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.dirs, id)
	for wd, of := range w.ids {
		if of == id {
			delete(w.ids, wd)
			_ = control(w.file, func(fd int) error { // it has ended already with its group
				_, err := unix.InotifyRmWatch(fd, uint32(wd))
				return err
			})
		}
	}
}

// Run reads notifications until ctx ends, or Close is called, and returns nil then. It calls noted
// with the IDs of groups whose counters may have changed, more often than they have. noted must not
// block.
func (w *OOMWatch) Run(ctx context.Context, noted func(ids []string)) error {
	defer context.AfterFunc(ctx, func() { _ = w.Close() })()
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch for OOM kills: %w", err)
		}
		if ids := w.named(buf[:n]); len(ids) > 0 {
			noted(ids)
		}
	}
}

// named returns the IDs that the events in read may concern. An eventfd, and an inotify instance
// whose queue overflowed, do not name the group: then all IDs are returned.
func (w *OOMWatch) named(read []byte) (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	every := !w.v2
	seen := map[string]bool{}
	for w.v2 && len(read) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(read)) // as the kernel wrote it
		mask := binary.NativeEndian.Uint32(read[4:])
		read = read[min(len(read), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(read[12:]))):]
		switch id, ok := w.ids[wd]; {
		case mask&unix.IN_Q_OVERFLOW != 0:
			every = true
		case ok && mask&unix.IN_IGNORED != 0:
			delete(w.ids, wd) // its group is gone
		case ok && !seen[id]:
			seen[id] = true
			ids = append(ids, id)
		}
	}
	if !every {
		return ids
	}
	ids = nil
	for id := range w.dirs {
		ids = append(ids, id)
	}
	return ids
}

// LimitHits returns a number for a group and for each group above it, which grows when that group
// reaches a memory limit of its own. On v2 it is oom in memory.events.local, the count of OOM
// situations. On v1, whose failcnt does not count in all kernels, it is the time of the reading if
// the group's peak usage equals its limit. The limits of the groups below it count for the group
// itself, but not for those above. The root of the hierarchy has no limit. It returns
// errdefs.ErrNotFound if the group is gone or has no memory controller.
func LimitHits(dir string) (hits []uint64, err error) {
	root := mount
	if !V2() {
		root = filepath.Join(mount, "memory")
	}
	for at := filepath.Clean(dir); strings.HasPrefix(at, root+"/"); at = filepath.Dir(at) {
		n, err := limitHits(at)
		if at == filepath.Clean(dir) && err == nil {
			n, err = limitHitsBelow(at, n)
		}
		if absent(err) {
			return nil, fmt.Errorf("read how often cgroup %s ran into its memory limit: %w", at, errdefs.ErrNotFound)
		}
		if err != nil {
			return nil, fmt.Errorf("read how often a cgroup ran into its memory limit: %w", err)
		}
		hits = append(hits, n)
	}
	return hits, nil
}

// atLimit reports whether a group has used as much as a limit of cgroup v1.
func atLimit(dir, counter string) (bool, error) {
	limit, err := number(dir, counter+".limit_in_bytes")
	if err != nil {
		return false, err
	}
	most, err := number(dir, counter+".max_usage_in_bytes")
	return most >= limit, err
}

func number(dir, file string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// limitHitsBelow returns the number of a group that also grows when one below it runs into its
// limit.
func limitHitsBelow(dir string, own uint64) (uint64, error) {
	if V2() {
		return eventsOf(dir, "memory.events")
	}
	for _, d := range below(dir) {
		if n, err := limitHits(d); err == nil { // it may be gone by now
			own = max(own, n)
		}
	}
	return own, nil
}

func limitHits(dir string) (uint64, error) {
	if !V2() {
		own, err := atLimit(dir, "memory")
		if err != nil {
			return 0, err
		}
		both, err := atLimit(dir, "memory.memsw") // with swap, where the kernel counts it
		if err != nil && !absent(err) {
			return 0, err
		}
		if own || both {
			return uint64(time.Now().UnixNano()), nil
		}
		return 0, nil
	}
	return eventsOf(dir, "memory.events.local")
}

// eventsOf returns how often a group has run into its limit so that the OOM killer fired, as one of
// the files of cgroup v2 has it.
func eventsOf(dir, file string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom "); ok {
			return strconv.ParseUint(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: %s has no oom", dir, file)
}
