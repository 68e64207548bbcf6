// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/fdstore"
)

// openCRI returns the CRI socket at a path, of a berth that was passed p.
func openCRI(t *testing.T, p passed, path string) (net.Listener, error) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	store, err := fdstore.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	return p.listen(path, store, log)
}

// connect dials the socket and expects lis to accept the connection.
func connect(t *testing.T, path string, lis net.Listener) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = other.Close()
}

// copyFD returns a copy of a listener's descriptor, as the service manager passes it.
func copyFD(t *testing.T, lis net.Listener) int {
	t.Helper()
	f, err := lis.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// The CRI socket is root on the host for whoever may connect to it.
func TestTheSocketIsForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "berth.sock")
	lis, err := openCRI(t, passed{}, path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != os.ModeSocket|socketMode {
		t.Errorf("the mode is %v: %v", st.Mode(), err)
	}
	connect(t, path, lis)
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket's file is still there")
	}
}

func TestAStaleSocketIsReplacedAndNothingElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openCRI(t, passed{}, path); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file was replaced: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openCRI(t, passed{}, path); err == nil || !strings.Contains(err.Error(), "serves there already") {
		t.Errorf("a socket was replaced on which somebody listens: %v", err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	lis, err := openCRI(t, passed{}, path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	connect(t, path, lis)
}

// listenAndEnd makes descriptor 3 listen on behalf of a process that is dead afterwards.
func listenAndEnd() {
	if err := unix.Listen(3, 16); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// A service manager that keeps the socket of a dead berth, and does not pass it on, would keep
// every later one from starting: the socket accepts connections.
func TestASocketOfADeadProcessIsReplacedThoughItAccepts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BERTH_TEST_LISTEN=1")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Fatalf("the socket does not accept: %v", err)
	} else {
		_ = c.Close()
	}
	lis, err := openCRI(t, passed{}, path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	connect(t, path, lis)
}

// Calls that were made while no berth was there are answered by the next one.
func TestTheSocketOfAnEarlierBerthIsTaken(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "@nobody-"+filepath.Base(t.TempDir()))
	path := filepath.Join(t.TempDir(), "berth.sock")
	lis, err := openCRI(t, passed{}, path)
	if err != nil {
		t.Fatal(err)
	}
	kept := copyFD(t, lis)
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	early, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("nobody keeps the call: %v", err)
	}
	defer early.Close()

	if lis, err = openCRI(t, passed{kept: []int{kept}}, path); err != nil {
		t.Fatal(err)
	}
	c, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	connect(t, path, lis)

	// Somebody removes the file, or the address is changed: nobody can reach the kept socket any
	// more.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	kept = copyFD(t, lis)
	_ = lis.Close()
	if lis, err = openCRI(t, passed{kept: []int{kept}}, path); err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	connect(t, path, lis)
}

func TestTheSocketOfASocketUnitIsTaken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "berth.sock")
	unit, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer unit.Close()
	if err := os.Chmod(path, 0o660); err != nil { // as the unit says
		t.Fatal(err)
	}
	lis, err := openCRI(t, passed{sockets: []int{copyFD(t, unit)}, kept: []int{copyFD(t, unit)}}, path)
	if err != nil {
		t.Fatal(err)
	}
	connect(t, path, lis)
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("the socket of the unit was changed: %v %v", st, err)
	}
}

// After a connection that was reset, clients named a file that nobody had ever seen: the one that
// the socket was bound to before it was moved.
func TestClientsSeeTheNameOfTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	lis, err := openCRI(t, passed{}, path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.RemoteAddr().String(); got != path {
		t.Errorf("the socket is %s for a client, not %s", got, path)
	}
}

// The socket is for its owner alone from its first moment on, whatever the umask is.
func TestTheSocketIsNeverOpenToOthers(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(t.TempDir(), "berth.sock")
	lis, err := newListener(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if st, err := os.Stat(path); err != nil || st.Mode() != os.ModeSocket|socketMode {
		t.Errorf("the mode is %v: %v", st.Mode(), err)
	}
}

// Of many that start at once, where an earlier one has left its socket, one serves, and no other
// takes its socket away.
func TestOneOfManyServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	for range 20 {
		stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		stale.SetUnlinkOnClose(false)
		_ = stale.Close()
		const many = 8
		type result struct {
			lis *net.UnixListener
			err error
		}
		results := make(chan result)
		for range many {
			go func() {
				lis, err := newListener(path)
				results <- result{lis, err}
			}()
		}
		var serves []*net.UnixListener
		for range many {
			r := <-results
			if r.err == nil {
				serves = append(serves, r.lis)
			} else if !strings.Contains(r.err.Error(), "serves there already") {
				t.Error(r.err)
			}
		}
		if len(serves) != 1 {
			t.Fatalf("%d serve", len(serves))
		}
		connect(t, path, serves[0])
		_ = serves[0].Close()
		_ = os.Remove(path)
	}
}

// The process that listens does not keep up with its clients: that connect(2) fails does not say
// that nobody is there.
func TestASocketWithoutRoomForClientsIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	var clients []net.Conn
	for full := false; !full; {
		c, err := net.Dial("unix", path)
		if full = err != nil; !full {
			clients = append(clients, c)
		}
	}
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	if _, err := newListener(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// openAlso returns the further sockets at paths, of a berth that was passed p, and its log.
func openAlso(t *testing.T, p passed, paths ...string) (all []net.Listener, logged string) {
	t.Helper()
	var b strings.Builder
	log := slog.New(slog.NewTextHandler(&b, nil))
	store, err := fdstore.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	all = p.listenAlso(paths, store, log)
	t.Cleanup(func() {
		for _, lis := range all {
			_ = lis.Close()
		}
	})
	return all, b.String()
}

// An operator gives berth the socket of another runtime, which still runs there: it keeps it, the
// log says who it is, and the other sockets are served. So it is with a file that is none of a
// socket.
func TestAFurtherSocketIsNeverTakenFromWhoServesThere(t *testing.T) {
	dir := t.TempDir()
	alive, file, stale, fresh := filepath.Join(dir, "alive.sock"), filepath.Join(dir, "file"), filepath.Join(dir, "stale.sock"), filepath.Join(dir, "made", "fresh.sock")
	runtime, err := net.ListenUnix("unix", &net.UnixAddr{Name: alive, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := errors.Join(dead.Close(), os.WriteFile(file, []byte("precious"), 0o600)); err != nil {
		t.Fatal(err)
	}
	all, logged := openAlso(t, passed{}, alive, file, stale, fresh)
	if len(all) != 2 {
		t.Fatalf("%d listen: %s", len(all), logged)
	}
	connect(t, alive, runtime)
	connect(t, stale, all[0])
	connect(t, fresh, all[1])
	for _, want := range []string{alive, "serves there already", file, "not a socket"} {
		if !strings.Contains(logged, want) {
			t.Errorf("the log does not say %q: %s", want, logged)
		}
	}
	if st, err := os.Stat(fresh); err != nil || st.Mode() != os.ModeSocket|socketMode {
		t.Errorf("the mode is %v: %v", st.Mode(), err)
	}
}

// A container that has the file of a further socket mounted reaches berth after a restart, too: it
// is the same file, and calls made meanwhile wait. What is no longer configured goes.
func TestAFurtherSocketOfAnEarlierBerthIsTaken(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "@nobody-"+filepath.Base(t.TempDir()))
	dir := t.TempDir()
	stays, goes := filepath.Join(dir, "stays.sock"), filepath.Join(dir, "goes.sock")
	first, logged := openAlso(t, passed{}, stays, goes)
	if len(first) != 2 {
		t.Fatal(logged)
	}
	before, err := os.Stat(stays)
	if err != nil {
		t.Fatal(err)
	}
	p := passed{also: map[string]int{alsoName(stays): copyFD(t, first[0]), alsoName(goes): copyFD(t, first[1])}}
	for _, lis := range first {
		_ = lis.Close()
	}
	early, err := net.Dial("unix", stays)
	if err != nil {
		t.Fatalf("nobody keeps the call: %v", err)
	}
	defer early.Close()
	next, logged := openAlso(t, p, stays)
	if len(next) != 1 {
		t.Fatal(logged)
	}
	c, err := next[0].Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	after, err := os.Stat(stays)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("it is another file: %v", err)
	}
	if _, err := os.Lstat(goes); err == nil {
		t.Error("the socket that is no longer configured is still there")
	}
}
