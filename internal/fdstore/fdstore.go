// SPDX-License-Identifier: Apache-2.0

package fdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// prefix tells the names of what berth keeps from those of others in the same store.
const prefix = "berth-"

// patience is how long Run waits for a manager to take one message before it looks whether it is to end; again is how long a
// manager that refused one is left alone.
const (
	patience = 100 * time.Millisecond
	again    = time.Second
)

// Store is the manager's store. Its methods may be called from any goroutine.
type Store struct {
	log  *slog.Logger
	sock int // -1: there is no manager
	to   unix.Sockaddr

	mu struct {
		sync.Mutex
		waiting map[string]int // by name: a descriptor to keep, or drop
		order   []string       // of waiting, oldest first
		closed  bool
	}
	wake chan struct{}
}

const drop = -1

// Open connects to the manager that NOTIFY_SOCKET names. Without one, the store keeps nothing.
func Open(log *slog.Logger) (*Store, error) {
	s := &Store{log: log, sock: -1, wake: make(chan struct{}, 1)}
	s.mu.waiting = map[string]int{}
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return s, nil
	}
	s.to = &unix.SockaddrUnix{Name: path} // "@" is the abstract namespace to x/sys as to systemd
	var err error
	if s.sock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open the service manager's descriptor store: %w", err)
	}
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(s.sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		_ = unix.Close(s.sock)
		return nil, fmt.Errorf("open the service manager's descriptor store: %w", err)
	}
	return s, nil
}

// Keep hands fd over under id. fd stays the caller's: the store has a copy of its own.
func (s *Store) Keep(id string, fd int) {
	if s.sock < 0 {
		return
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		s.log.Warn("descriptor is not kept beyond berth's death", "id", id, "err", err)
		return
	}
	s.put(prefix+id, own)
}

// Drop takes back what was kept under id; nothing may be.
func (s *Store) Drop(id string) {
	if s.sock >= 0 {
		s.put(prefix+id, drop)
	}
}

func (s *Store) put(name string, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		closeIf(fd)
		return
	}
	old, ok := s.mu.waiting[name]
	s.mu.waiting[name] = fd
	if ok {
		closeIf(old)
	} else {
		s.mu.order = append(s.mu.order, name)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func closeIf(fd int) {
	if fd != drop {
		_ = unix.Close(fd)
	}
}

// Run hands over what waits until ctx ends; what still waits then is not handed over.
func (s *Store) Run(ctx context.Context) error {
	defer s.close()
	for {
		wait := (<-chan time.Time)(nil)
		if s.sock >= 0 {
			switch err := s.send(ctx); {
			case errors.Is(err, unix.EAGAIN):
				continue
			case err != nil:
				s.log.Warn("the service manager does not take a descriptor", "err", err)
				wait = time.After(again)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wait:
		case <-s.wake:
		}
	}
}

// send hands over until nothing waits, or the manager does not take it.
func (s *Store) send(ctx context.Context) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		if len(s.mu.order) == 0 {
			s.mu.Unlock()
			return nil
		}
		name := s.mu.order[0]
		fd := s.mu.waiting[name]
		s.mu.order = s.mu.order[1:]
		delete(s.mu.waiting, name)
		s.mu.Unlock()
		if err := s.message(name, fd); err != nil {
			s.back(name, fd)
			return err
		}
		closeIf(fd)
	}
	return nil
}

// back puts a message that was not taken where it was, unless there is a later word by now.
func (s *Store) back(name string, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, later := s.mu.waiting[name]; later || s.mu.closed {
		closeIf(fd)
		return
	}
	s.mu.waiting[name] = fd
	s.mu.order = append([]string{name}, s.mu.order...)
}

func (s *Store) message(name string, fd int) error {
	if fd == drop {
		return unix.Sendto(s.sock, []byte("FDSTOREREMOVE=1\nFDNAME="+name), unix.MSG_NOSIGNAL, s.to)
	}
	// FDPOLL=0: a pidfd hangs up when its process is reaped, and that is when it is wanted.
	return unix.Sendmsg(s.sock, []byte("FDSTORE=1\nFDPOLL=0\nFDNAME="+name), unix.UnixRights(fd), s.to, unix.MSG_NOSIGNAL)
}

func (s *Store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	for _, fd := range s.mu.waiting {
		closeIf(fd)
	}
	clear(s.mu.waiting)
	if s.sock >= 0 {
		_ = unix.Close(s.sock)
	}
}

// firstFD is where inherited descriptors begin (SD_LISTEN_FDS_START).
const firstFD = 3

// Inherited returns the descriptors that the manager passes to this process, which the caller owns. kept
// are those that an earlier berth left in the store, by ID. sockets are the Unix sockets that listen on
// behalf of a socket unit (systemd.socket(5)). Everything else is closed. Inherited is to be called once,
// early: it removes the environment variables that describe the descriptors.
func Inherited() (kept map[string]int, sockets []int) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, k := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(k)
	}
	n, err := strconv.Atoi(count)
	if err != nil || pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	kept = map[string]int{}
	name := strings.Split(names, ":")
	for i := range n {
		fd := firstFD + i
		unix.CloseOnExec(fd)
		id, own := "", false
		if i < len(name) {
			id, own = strings.CutPrefix(name[i], prefix)
		}
		_, twice := kept[id]
		switch {
		case own && id != "" && !twice:
			kept[id] = fd
		case !own && listens(fd):
			sockets = append(sockets, fd)
		default:
			_ = unix.Close(fd)
		}
	}
	return kept, sockets
}

// listens reports whether fd is a Unix stream socket that listens.
func listens(fd int) bool {
	for _, want := range []struct{ option, value int }{
		{unix.SO_DOMAIN, unix.AF_UNIX},
		{unix.SO_TYPE, unix.SOCK_STREAM},
		{unix.SO_ACCEPTCONN, 1},
	} {
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, want.option); err != nil || v != want.value {
			return false
		}
	}
	return true
}
