// SPDX-License-Identifier: Apache-2.0

package fdstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv("FDSTORE_HEIR") != "" {
		heir()
		return
	}
	goleak.VerifyTestMain(m)
}

// heir stands for the next berth: it prints what each inherited pipe contains.
func heir() {
	kept, sockets := Inherited()
	for _, fd := range sockets {
		name, err := unix.Getsockname(fd)
		if u, ok := name.(*unix.SockaddrUnix); ok {
			fmt.Println("socket", u.Name, err)
		}
	}
	for id, fd := range kept {
		b := make([]byte, 100)
		n, err := unix.Read(fd, b)
		flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		fmt.Println(id, string(b[:max(n, 0)]), err, flags&unix.FD_CLOEXEC != 0, os.Getenv("LISTEN_FDS") == "")
	}
}

// manager stands for the service manager: it takes messages and their descriptors.
type manager struct {
	t *testing.T
	c *net.UnixConn
}

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &manager{t, c}
}

// next takes one message and returns its text, and its descriptor or -1.
func (m *manager) next() (string, int) {
	m.t.Helper()
	b, oob := make([]byte, 4096), make([]byte, 4096)
	n, on, _, _, err := m.c.ReadMsgUnix(b, oob)
	if err != nil {
		m.t.Fatal(err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil {
		m.t.Fatal(err)
	}
	fd := -1
	if len(msgs) > 0 {
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			m.t.Fatalf("%v %v", fds, err)
		}
		fd = fds[0]
	}
	return string(b[:n]), fd
}

func run(t *testing.T) *Store {
	t.Helper()
	s, err := Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, s)
	return s
}

func runStore(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func pipe(t *testing.T, text string) int {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	return int(r.Fd())
}

// What one process keeps, the next one inherits under the same ID.
func TestWhatIsKeptIsInherited(t *testing.T) {
	m := newManager(t)
	s := run(t)
	s.Keep("c1", pipe(t, "one"))
	s.Keep("c2", pipe(t, "two"))
	s.Drop("c2")
	var files []*os.File
	var names []string
	text, fd := m.next()
	if text != "FDSTORE=1\nFDPOLL=0\nFDNAME=berth-c1" || fd < 0 {
		t.Fatalf("%q %d", text, fd)
	}
	files, names = append(files, os.NewFile(uintptr(fd), "")), append(names, "berth-c1")
	for text != "FDSTOREREMOVE=1\nFDNAME=berth-c2" { // c2 may have been kept before that
		if text, fd = m.next(); fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	other, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	files, names = append(files, other), append(names, "somebody-else")
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@fdstore-test", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	activated, err := lis.File()
	if err != nil {
		t.Fatal(err)
	}
	files, names = append(files, activated), append(names, "berth.socket")
	cmd := exec.Command("/bin/sh", "-c", "LISTEN_PID=$$ exec "+os.Args[0])
	cmd.Env = append(os.Environ(), "FDSTORE_HEIR=1", "LISTEN_FDS=3", "LISTEN_FDNAMES="+strings.Join(names, ":"))
	cmd.ExtraFiles = files
	out, err := cmd.CombinedOutput()
	for _, f := range files {
		_ = f.Close()
	}
	if got := string(bytes.TrimSpace(out)); err != nil || got != "socket @fdstore-test <nil>\nc1 one <nil> true true" {
		t.Fatalf("%v: %q", err, got)
	}
}

// A second start under the same ID: the manager must not have the pidfd of the first one any more.
func TestWhatIsKeptAfterADropTakesThePlaceOfWhatWasThere(t *testing.T) {
	m := newManager(t)
	s, err := Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.Drop("c1") // it waits: Run is not called yet
	s.Keep("c1", pipe(t, "second"))
	s.Keep("c2", pipe(t, "not sent"))
	s.Drop("c2")
	s.Keep("c2", pipe(t, "second"))
	runStore(t, s)
	for _, want := range []string{
		"FDSTOREREMOVE=1\nFDNAME=berth-c1", "FDSTORE=1\nFDPOLL=0\nFDNAME=berth-c1",
		"FDSTOREREMOVE=1\nFDNAME=berth-c2", "FDSTORE=1\nFDPOLL=0\nFDNAME=berth-c2",
	} {
		text, fd := m.next()
		if text != want {
			t.Fatalf("got %q, want %q", text, want)
		}
		if fd < 0 {
			continue
		}
		b := make([]byte, 100)
		if n, err := unix.Read(fd, b); err != nil || string(b[:n]) != "second" {
			t.Errorf("%s: %q, %v", want, b[:max(n, 0)], err)
		}
		_ = unix.Close(fd)
	}
}

// A manager that does not read holds up nobody, and gets the latest order for each name in the end.
func TestAManagerThatDoesNotReadHoldsUpNobody(t *testing.T) {
	m := newManager(t)
	s := run(t)
	fd := pipe(t, "x")
	const n = 2000 // more than a socket takes
	for i := range n {
		s.Keep(fmt.Sprint("c", i), fd)
	}
	for i := range n {
		s.Drop(fmt.Sprint("c", i))
	}
	kept := map[string]bool{}
	dropped := 0
	for dropped < n {
		text, fd := m.next()
		name := text[strings.LastIndex(text, "=")+1:]
		if fd >= 0 {
			_ = unix.Close(fd)
			kept[name] = true
			continue
		}
		delete(kept, name)
		dropped++
	}
	if len(kept) > 0 {
		t.Errorf("still kept: %v", kept)
	}
}

func TestNothingIsKeptWithoutAManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	s := run(t)
	s.Keep("c1", 0)
	s.Drop("c1")
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "3")
	if kept, sockets := Inherited(); kept != nil || sockets != nil {
		t.Errorf("took what is another process's: %v %v", kept, sockets)
	}
}

// What was kept and dropped just before berth stopped was not sent: the next berth could not tell how
// the container ended, and a descriptor stayed with the manager until then.
func TestWhatWaitsAtTheEndIsSent(t *testing.T) {
	m := newManager(t)
	s, err := Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.Keep("c1", pipe(t, "one"))
	s.Drop("c2")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := m.c.WriteToUnix([]byte("the end"), m.c.LocalAddr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FDSTORE=1\nFDPOLL=0\nFDNAME=berth-c1", "FDSTOREREMOVE=1\nFDNAME=berth-c2", "the end"} {
		text, fd := m.next()
		if text != want {
			t.Fatalf("got %q, want %q", text, want)
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
