// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/peercred"
	"berth/internal/host/fdstore"
)

// keptListener is the name of the CRI socket in the service manager's descriptor store. No sandbox
// or container has such an ID.
const keptListener = "cri"

// keptAlso begins the names of the sockets of cri.sockets there.
const keptAlso = "cri-"

// alsoName returns the name of a further socket in the descriptor store, whose names cannot be
// paths.
func alsoName(path string) string {
	sum := sha256.Sum256([]byte(path))
	return keptAlso + hex.EncodeToString(sum[:8])
}

// socketMode is the mode of a socket: a client that may connect is root on this host.
const socketMode = 0o600

// passed are the descriptors of listeners that the service manager passes to berth.
type passed struct {
	sockets []int          // of a socket unit
	kept    []int          // of an earlier berth; one at most
	also    map[string]int // further ones of an earlier berth, by alsoName
}

// takePassed takes the descriptors of listeners that are passed to this process, once. rest are the
// other ones that an earlier berth left with the service manager.
func takePassed() (p passed, rest map[string]int) {
	rest, p.sockets = fdstore.Inherited()
	if fd, ok := rest[keptListener]; ok {
		delete(rest, keptListener)
		p.kept = []int{fd}
	}
	p.also = map[string]int{}
	for name, fd := range rest {
		if strings.HasPrefix(name, keptAlso) {
			delete(rest, name)
			p.also[name] = fd
		}
	}
	return p, rest
}

// listen returns the CRI socket. In this order it takes the one of a socket unit, the one that an
// earlier berth left with the service manager, or a new one at path, which it leaves with the
// service manager, if there is one. The first two have been there while no berth was: calls made
// meanwhile wait in their backlog, and clients do not notice that berth was restarted.
func (p passed) listen(path string, store *fdstore.Store, log *slog.Logger) (net.Listener, error) {
	if len(p.sockets) > 0 {
		closeFDs(append(p.sockets[1:], p.kept...))
		store.Drop(keptListener)
		lis, err := fromFD(p.sockets[0])
		if err != nil {
			return nil, fmt.Errorf("use the socket of the service manager: %w", err)
		}
		if !boundTo(lis, path) {
			log.Warn("CRI is served on the socket of the service manager instead of the configured address", "socket", lis.Addr(), "address", path)
		}
		lis.SetUnlinkOnClose(false)
		return lis, nil
	}
	for _, fd := range p.kept {
		lis, err := fromFD(fd)
		if err != nil {
			log.Warn("the socket of an earlier berth cannot be used", "err", err)
			continue
		}
		lis.SetUnlinkOnClose(false)
		if boundTo(lis, path) {
			return lis, nil
		}
		_ = lis.Close() // its file was removed, or the address was changed
	}
	store.Drop(keptListener)
	lis, err := newListener(path)
	if err != nil {
		return nil, err
	}
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return unlinking{lis, path}, nil
	}
	return lis, keep(store, keptListener, lis)
}

// listenAlso returns the further sockets on which CRI is served: those that an earlier berth left
// with the service manager, and new ones for the rest. One on which another process listens is left
// to it, and logged as all that cannot be made: the CRI socket itself is there, so berth serves.
func (p passed) listenAlso(paths []string, store *fdstore.Store, log *slog.Logger) (all []net.Listener) {
	for _, path := range paths {
		name := alsoName(path)
		if fd, ok := p.also[name]; ok {
			delete(p.also, name)
			lis, err := fromFD(fd)
			if err == nil {
				lis.SetUnlinkOnClose(false)
				if boundTo(lis, path) {
					all = append(all, lis)
					continue
				}
				_ = lis.Close() // its file was removed
			}
			store.Drop(name)
		}
		lis, err := newListener(path)
		if err != nil {
			log.Error("CRI is not served on one of cri.sockets; mend what the error says, and restart berth", "socket", path, "err", err)
			continue
		}
		if os.Getenv("NOTIFY_SOCKET") == "" {
			all = append(all, unlinking{lis, path})
			continue
		}
		if err := keep(store, name, lis); err != nil {
			log.Error("CRI is not served on one of cri.sockets", "socket", path, "err", err)
			continue
		}
		all = append(all, lis)
	}
	for name, fd := range p.also { // no longer in the list
		store.Drop(name)
		if lis, err := fromFD(fd); err == nil {
			if path := lis.Addr().String(); boundTo(lis, path) {
				_ = os.Remove(path)
			}
			_ = lis.Close()
		}
	}
	return all
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// keep hands a copy of the listener to the service manager, under a name.
func keep(store *fdstore.Store, name string, lis *net.UnixListener) error {
	raw, err := lis.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { store.Keep(name, int(fd)) })
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keep %s for the next berth: %w", lis.Addr(), err), lis.Close())
	}
	return nil
}

// fromFD makes a listener from a descriptor, which it takes over.
func fromFD(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "cri")
	defer f.Close()
	lis, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := lis.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is not a Unix socket", lis.Addr()), lis.Close())
	}
	return u, nil
}

// siocUnixFile is SIOCUNIXFILE of unix(7), which returns an O_PATH descriptor of the file that a
// socket is bound to.
const siocUnixFile = 0x89e0

// boundTo reports whether a client that connects to path reaches lis. The name that a socket was
// bound to does not answer that: its file may have been renamed or removed since. The kernel knows
// the file.
func boundTo(lis *net.UnixListener, path string) bool {
	same, err := leadsTo(path, lis)
	return err == nil && same
}

// leadsTo is boundTo with an error that says that it cannot be told now.
func leadsTo(path string, lis *net.UnixListener) (same bool, err error) {
	raw, err := lis.SyscallConn()
	if err != nil {
		return false, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var file int
		if file, err = unix.IoctlRetInt(int(fd), siocUnixFile); err != nil {
			return
		}
		defer unix.Close(file)
		var have, want unix.Stat_t
		if err = unix.Fstat(file, &have); err != nil {
			return
		}
		if err = unix.Stat(path, &want); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			err = nil
			return
		}
		same = have.Dev == want.Dev && have.Ino == want.Ino
	})
	return same, errors.Join(cerr, err)
}

// newListener opens a socket at path for root alone. A socket there on which nobody listens is
// replaced. Of several processes that try, one succeeds: the directory is locked meanwhile.
func newListener(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the socket: %w", err)
	}
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer unlock()
	pid, err := whoListens(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: find out whether somebody serves there: %w", path, err)
	}
	if pid != 0 {
		return nil, fmt.Errorf("listen on %s: process %d serves there already; stop it, or configure another path", path, pid)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("listen on %s: the file there is not a socket; remove it, or configure another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	}
	// The name that a socket is bound to is the one that its clients see. The file gets the mode of
	// the socket, less the umask, so it is never open to others, not even for a moment.
	closed := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		cerr := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), socketMode) })
		return errors.Join(cerr, err)
	}}
	lis, err := closed.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	u := lis.(*net.UnixListener) // what listens on a Unix socket is that
	u.SetUnlinkOnClose(false)
	return u, nil
}

const (
	// lockTimeout is how long another process may hold the lock of the socket's directory. It takes
	// a second at most to find out that somebody serves.
	lockTimeout = 5 * time.Second
	// lockInterval is how often the lock is tried.
	lockInterval = 10 * time.Millisecond
)

// lockDir locks a directory until the function that it returns is called, or the process ends. Any
// process that may read the directory can hold its lock. One that holds it for longer than a berth
// takes to start is not a berth, and is not waited for.
func lockDir(path string) (unlock func(), err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockTimeout); ; time.Sleep(lockInterval) {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = dir.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock directory %s: %w", path, err), dir.Close())
		}
		if time.Now().After(end) {
			return func() { _ = dir.Close() }, nil
		}
	}
}

// whoListens returns the process that listens on a socket, 0 if there is none. A socket whose
// process is dead may still accept connections, because the service manager keeps it; a berth that
// was not passed it must not wait for that. An error says that nobody could tell: one that does not
// keep up with its clients refuses this one, too (EAGAIN, connect(2)).
func whoListens(path string) (pid int, err error) {
	c, err := net.DialTimeout("unix", path, time.Second)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer c.Close()
	cred, err := peercred.Of(c.(*net.UnixConn))
	if err != nil {
		return 0, err
	}
	if errors.Is(unix.Kill(int(cred.Pid), 0), unix.ESRCH) {
		return 0, nil
	}
	return int(cred.Pid), nil
}

// unlinking is a listener whose file is removed when it is closed.
type unlinking struct {
	net.Listener
	path string
}

// Close implements net.Listener.
func (u unlinking) Close() error {
	_ = os.Remove(u.path)
	return u.Listener.Close()
}
