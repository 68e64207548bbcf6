// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// serviceManager stands for systemd: it keeps the descriptors that berth hands it, and passes them
// to the next one (sd_notify(3), sd_listen_fds(3)).
type serviceManager struct {
	conn *net.UnixConn
	done chan struct{}

	mu   sync.Mutex
	kept map[string]*os.File
}

func startServiceManager(t testing.TB, path string) *serviceManager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m := &serviceManager{conn: conn, done: make(chan struct{}), kept: map[string]*os.File{}}
	go func() {
		defer close(m.done)
		for m.take() {
		}
	}()
	return m
}

// lastMessage is sent by the manager to itself, to take all messages before it.
const lastMessage = "the last message"

// take takes one message; it returns false for the last one.
func (m *serviceManager) take() bool {
	b, oob := make([]byte, 4096), make([]byte, 4096)
	n, on, _, _, err := m.conn.ReadMsgUnix(b, oob)
	if err != nil || string(b[:n]) == lastMessage {
		return false
	}
	set := map[string]string{}
	for line := range strings.Lines(string(b[:n])) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		set[k] = v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.kept[set["FDNAME"]]; old != nil && set["FDSTOREREMOVE"] == "1" {
		_ = old.Close()
		delete(m.kept, set["FDNAME"])
	}
	msgs, _ := unix.ParseSocketControlMessage(oob[:on])
	for i := range msgs {
		fds, _ := unix.ParseUnixRights(&msgs[i])
		for _, fd := range fds {
			m.kept[set["FDNAME"]] = os.NewFile(uintptr(fd), set["FDNAME"])
		}
	}
	return true
}

// listener is the name of berth's own socket, which the service manager keeps for as long as the
// node exists.
const listener = "berth-cri"

// Kept are the names of the descriptors in the service manager's store, sorted, without berth's
// socket.
func (n *Node) Kept() []string {
	n.manager.mu.Lock()
	defer n.manager.mu.Unlock()
	var names []string
	for name := range n.manager.kept {
		if name != listener {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// DropKept empties the service manager's store, except for berth's socket, as systemd does when the
// unit's definition is changed or the store is cleared.
func (n *Node) DropKept() {
	n.manager.mu.Lock()
	defer n.manager.mu.Unlock()
	for name, f := range n.manager.kept {
		if name != listener {
			_ = f.Close()
			delete(n.manager.kept, name)
		}
	}
}

// heritage is the inheritance of a new berth: its environment and descriptors from 3 on. The
// descriptors are copies, which the caller closes, because the store may be emptied at any time.
func (m *serviceManager) heritage() (env []string, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name, f := range m.kept {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue // the test will miss it
		}
		names, files = append(names, name), append(files, os.NewFile(uintptr(fd), name))
	}
	return []string{
		"NOTIFY_SOCKET=" + m.conn.LocalAddr().String(), fmt.Sprint("LISTEN_FDS=", len(files)), "LISTEN_FDNAMES=" + strings.Join(names, ":"),
	}, files
}

func (m *serviceManager) stop() (left int) {
	_, _ = m.conn.WriteToUnix([]byte(lastMessage), m.conn.LocalAddr().(*net.UnixAddr))
	<-m.done
	_ = m.conn.Close()
	for name, f := range m.kept {
		_ = f.Close()
		if name != listener {
			left++
		}
	}
	return left
}
