// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxParting is how many clients may be taking the end of their streams at a time. For one
	// more, the one that has taken nothing for longest is hung up on.
	maxParting = 256
	// partingTime is how long a client may take altogether for the rest of its stream, if it takes
	// some of it all the time.
	partingTime = time.Hour
)

// A connection whose call has ended is parting. If a socket is closed while the client has not read
// everything, the rest is lost as soon as the client sends anything more, such as a ping: the
// kernel answers that with a reset, and drops its unsent data. The client then lacks the end of the
// output and the exit code, and takes that for success. So berth sends the end of the client's
// protocol, and goes on reading until the client closes the connection, as it does once it has read
// that end.
//
//	call ends → last word is written → client reads on ──→ client closes → berth closes
//	                                      |    berth reads and drops
//	                                      └─ nothing leaves for its patience, and nothing is left:
//	                                         the write side is closed; and after as long again both
//
// The write side of TCP stays open for so long because the kubelet and the API server, through
// which most clients come, hang up on their client as soon as they have read the end of a
// connection, even if that client has not.
//
// The place of the stream is given back when the call ends. There are no more than maxParting such
// connections, and each of them ends.
type parting struct {
	since time.Time
	moved time.Time // when the client was last seen to have taken something
	acked uint64    // how many bytes it had taken then
	over  net.Conn  // the same with TLS, if there is TLS; nil: its write side is closed
}

// ownOf returns the connection of a request.
func ownOf(req *http.Request) *conn {
	own, _ := req.Context().Value(connKey{}).(*conn)
	return own
}

// startParting notes that the call of a connection has ended. It is called before the end of the
// protocol is written, because the client may not read. It may be called again.
func (c *conn) startParting(over net.Conn) {
	s := c.server
	acked, _ := c.progress()
	now := time.Now()
	s.mu.Lock()
	var slowest *conn
	n := 0
	for other := range s.mu.conns {
		if other == c || other.parted == nil {
			continue
		}
		n++
		if slowest == nil || other.parted.moved.Before(slowest.parted.moved) {
			slowest = other
		}
	}
	first := c.parted == nil && s.mu.conns[c] // it may be closed already
	if n < maxParting || !first {
		slowest = nil
	}
	if c.parted == nil {
		c.parted = &parting{since: now, moved: now, acked: acked, over: over}
	}
	s.mu.Unlock()
	if slowest != nil {
		_ = slowest.Close()
	}
}

// isParting reports whether the call of the connection has ended.
func (c *conn) isParting() bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.parted != nil
}

// part returns when the client has closed an upgraded connection, whose call has ended, or has
// taken too long, and closes it.
func (c *conn) part() {
	if !c.upgraded.Load() {
		return
	}
	c.startParting(nil)
	c.leave()
	select {
	case <-c.heard.Done():
		c.closeWrite()
	case <-c.over.Done():
	}
	<-c.over.Done()
	_ = c.Close()
}

// drain reads and drops bytes behind the end of the client's protocol until the client closes the
// connection. Unread bytes in a connection that is closed draw a reset, too.
func (c *conn) drain() {
	c.hear()
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{c})
	c.leave()
	c.end()
}

// closeWrite ends the direction to the client, once.
func (c *conn) closeWrite() {
	c.server.mu.Lock()
	over := c.parted.over
	c.parted.over = nil
	c.server.mu.Unlock()
	if half, ok := over.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // TLS's own, if there is TLS
	}
	_ = c.CloseWrite()
}

// lookParting reports whether a connection is parting, and closes it when its client takes nothing.
func (c *conn) lookParting() bool {
	if !c.isParting() {
		return false
	}
	acked, left := c.progress()
	now := time.Now()
	s := c.server
	s.mu.Lock()
	p := c.parted
	if acked != p.acked {
		p.acked, p.moved = acked, now
	}
	quiet := now.Sub(p.moved)
	half := left == 0 && quiet >= s.patience && p.over != nil
	stuck := quiet >= 2*s.patience || now.Sub(p.since) >= partingTime
	s.mu.Unlock()
	switch {
	case stuck:
		_ = c.Close()
	case half:
		go c.closeWrite()
	}
	return true
}

// progress returns how many bytes the client's kernel has taken, and how many are left in this one.
func (c *conn) progress() (acked uint64, left int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			acked = info.Bytes_acked
		}
		left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	})
	return acked, left
}

// ignoreInput makes the kernel drop the further input of a parting client, and nothing else: it
// then goes on sending the rest after berth has closed the connection, or has ended, and a ping of
// the client does not draw a reset. It is a filter that keeps the header of each segment. If the
// kernel refuses it, as it may for a process without capabilities, a client that is behind when
// berth stops can lose its end.
func (c *conn) ignoreInput() {
	if !c.isParting() {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	// the kernel keeps no less than the header
	keep := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &keep})
	})
}
