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

	"berth/internal/base/retry"
)

// prefix marks the names of berth's descriptors, because others may use the same store.
const prefix = "berth-"

const (
	// sendTimeout is how long Run waits for the manager to take one message before it checks
	// whether it is to end.
	sendTimeout = 100 * time.Millisecond
	// retryAfter is how long Run leaves a manager alone that refused a message.
	retryAfter = time.Second
	// flushTimeout bounds how long Run still sends after its context has ended.
	flushTimeout = time.Second
)

// Store is the manager's store. Its methods may be called from any goroutine.
type Store struct {
	log  *slog.Logger
	sock int // -1 if there is no manager
	to   unix.Sockaddr

	mu struct {
		sync.Mutex
		waiting map[string]order // by name
		names   []string         // of waiting, oldest first
		closed  bool
	}
	wake retry.Wake // holds one token when something may wait
}

// order is a queued change to the manager's store for one name. The manager adds a descriptor to
// those that it has under a name, so one that takes the place of another is dropped first.
type order struct {
	drop bool
	fd   int // to be kept, after the drop; none if there is nothing to be kept
}

const none = -1

// Open opens a socket to the manager that NOTIFY_SOCKET names. If it names none, the store keeps
// nothing. The caller must call Run, which closes the socket at its end.
func Open(log *slog.Logger) (*Store, error) {
	s := &Store{log: log, sock: -1, wake: retry.NewWake()}
	s.mu.waiting = map[string]order{}
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return s, nil
	}
	s.to = &unix.SockaddrUnix{Name: path} // "@" begins an abstract name
	var err error
	if s.sock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open the service manager's descriptor store: make a socket: %w", err)
	}
	tv := unix.NsecToTimeval(sendTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(s.sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		_ = unix.Close(s.sock)
		return nil, fmt.Errorf("open the service manager's descriptor store: %w", err)
	}
	return s, nil
}

// Keep hands a copy of fd over under id. fd stays the caller's. If something may be kept under id
// already, Drop it before.
func (s *Store) Keep(id string, fd int) {
	if s.sock < 0 {
		return
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		s.log.Warn("descriptor not kept for the next berth", "id", id, "err", err)
		return
	}
	s.put(prefix+id, order{fd: own})
}

// Drop removes the descriptor stored under id, if any.
func (s *Store) Drop(id string) {
	if s.sock >= 0 {
		s.put(prefix+id, order{drop: true, fd: none})
	}
}

// put queues an order. It takes the place of the one for the same name that waits, but a drop that
// waits is carried out all the same.
func (s *Store) put(name string, o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		o.close()
		return
	}
	old, ok := s.mu.waiting[name]
	if ok {
		old.close()
		o.drop = o.drop || old.drop
	} else {
		s.mu.names = append(s.mu.names, name)
	}
	s.mu.waiting[name] = o
	s.wake.Up()
}

func (o order) close() {
	if o.fd != none {
		_ = unix.Close(o.fd)
	}
}

// Run sends queued changes until ctx ends, and then for a moment those that are still queued, so
// that the next berth watches a container that was started just before this one stops. Nothing is
// sent after it has returned.
func (s *Store) Run(ctx context.Context) error {
	defer s.close()
	for {
		wait := (<-chan time.Time)(nil)
		if s.sock >= 0 {
			switch err := s.send(ctx); {
			case errors.Is(err, unix.EAGAIN):
				continue
			case err != nil:
				s.log.Warn("service manager does not take a descriptor", "err", err)
				wait = time.After(retryAfter)
			}
		}
		select {
		case <-ctx.Done():
			s.flush(ctx)
			return nil
		case <-wait:
		case <-s.wake:
		}
	}
}

// flush sends queued changes for as long as the manager takes them.
func (s *Store) flush(ctx context.Context) {
	if s.sock < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := s.send(ctx); err != nil {
		s.log.Warn("service manager did not take a descriptor before berth ended", "err", err)
	}
}

// send sends orders until none waits, or the manager does not take one.
func (s *Store) send(ctx context.Context) error {
	for ctx.Err() == nil {
		s.mu.Lock()
		if len(s.mu.names) == 0 {
			s.mu.Unlock()
			return nil
		}
		name := s.mu.names[0]
		o := s.mu.waiting[name]
		s.mu.names = s.mu.names[1:]
		delete(s.mu.waiting, name)
		s.mu.Unlock()
		if o.drop {
			if err := s.sendDrop(name); err != nil {
				s.putBack(name, o)
				return err
			}
			o.drop = false
		}
		if o.fd != none {
			if err := s.sendKeep(name, o.fd); err != nil {
				s.putBack(name, o)
				return err
			}
			o.close()
		}
	}
	return nil
}

// putBack queues an order again that was not carried out, unless there is a later one for its name.
func (s *Store) putBack(name string, o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	later, ok := s.mu.waiting[name]
	switch {
	case s.mu.closed:
		o.close()
	case ok:
		o.close()
		later.drop = later.drop || o.drop
		s.mu.waiting[name] = later
	default:
		s.mu.waiting[name] = o
		s.mu.names = append([]string{name}, s.mu.names...)
	}
}

func (s *Store) sendDrop(name string) error {
	return unix.Sendto(s.sock, []byte("FDSTOREREMOVE=1\nFDNAME="+name), unix.MSG_NOSIGNAL, s.to)
}

// sendKeep sends a descriptor. With FDPOLL=0 the manager does not close it when it hangs up: a
// pidfd does so once its process was reaped, and that is when it is needed.
func (s *Store) sendKeep(name string, fd int) error {
	return unix.Sendmsg(s.sock, []byte("FDSTORE=1\nFDPOLL=0\nFDNAME="+name), unix.UnixRights(fd), s.to, unix.MSG_NOSIGNAL)
}

func (s *Store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	for _, o := range s.mu.waiting {
		o.close()
	}
	clear(s.mu.waiting)
	if s.sock >= 0 {
		_ = unix.Close(s.sock)
	}
}

// firstFD is the first inherited descriptor (SD_LISTEN_FDS_START).
const firstFD = 3

// Inherited returns the descriptors that the manager passed to this process. The caller owns them.
// kept are those that an earlier berth left in the store, by ID. sockets are the listening Unix
// sockets of a socket unit (systemd.socket(5)). All other inherited descriptors are closed.
// Inherited is to be called once, early: it removes the environment variables that describe the
// descriptors.
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
