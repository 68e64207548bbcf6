// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// lookInterval is how often the server looks for clients that are gone.
const lookInterval = 2 * time.Second

// conn is a client's connection. Once it is upgraded, net/http does not look after it any more:
// conn ends the context of the request when the client is gone. The reader of the connection would
// notice that, too, but it waits where a process does not take its input.
type conn struct {
	*net.TCPConn
	server *Server
	gone   context.Context
	leave  context.CancelFunc
	since  time.Time
	// redeemed is set if the client had a URL of CRI's, whose place in the budget it has now.
	redeemed atomic.Bool
	upgraded atomic.Bool // to WebSocket or SPDY

	heard  context.Context // ends when the client has ended its protocol
	hear   context.CancelFunc
	over   context.Context // ends when the client has closed its side, or berth has closed both
	end    context.CancelFunc
	parted *parting // guarded by the server's mutex; nil: its call goes on
}

func newConn(tcp *net.TCPConn, server *Server) *conn {
	c := &conn{TCPConn: tcp, server: server, since: time.Now()}
	c.gone, c.leave = context.WithCancel(context.Background())
	c.heard, c.hear = context.WithCancel(context.Background())
	c.over, c.end = context.WithCancel(context.Background())
	return c
}

// listener counts the connections.
type listener struct {
	net.Listener
	server *Server
}

// Accept waits for a client. If too many have not asked for anything yet, one is hung up on.
func (l listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := accepted.(*net.TCPConn)
		if !ok {
			_ = accepted.Close()
			continue
		}
		c := newConn(tcp, l.server)
		l.server.add(c)
		return c, nil
	}
}

// add takes a connection. If there are too many without a stream, the oldest of them makes room: a
// client asks for its stream at once, and one that does not must not keep others out.
func (s *Server) add(c *conn) {
	s.mu.Lock()
	var oldest *conn
	waiting := 0
	for other := range s.mu.conns {
		if other.redeemed.Load() {
			continue
		}
		waiting++
		if oldest == nil || other.since.Before(oldest.since) {
			oldest = other
		}
	}
	if waiting < maxWaiting {
		oldest = nil
	}
	delete(s.mu.conns, oldest)
	s.mu.conns[c] = true
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// connContext gives requests the context of their connection, and the connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	own := ownConn(c)
	if own == nil {
		return ctx
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, connKey{}, own))
	context.AfterFunc(own.gone, cancel)
	return ctx
}

// connState notes that a connection was upgraded.
func connState(c net.Conn, state http.ConnState) {
	if own := ownConn(c); own != nil && state == http.StateHijacked {
		own.upgraded.Store(true)
	}
}

// ownConn returns berth's own connection below c, or nil if there is none.
func ownConn(c net.Conn) *conn {
	if g, ok := c.(*gate); ok {
		c = g.Conn
	}
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, _ := c.(*conn)
	return own
}

// Read reads. An end or an error means that the client is gone.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err != nil && !isTimeout(err) {
		c.leave()
		c.end()
	}
	return n, err
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // it comes from the connection itself
	return ok && e.Timeout()
}

// Close closes the connection.
func (c *conn) Close() error {
	c.leave()
	c.server.mu.Lock()
	delete(c.server.mu.conns, c)
	c.server.silentLocked()
	c.server.mu.Unlock()
	c.end()
	return c.TCPConn.Close()
}

// isGone reports whether the client has closed the connection, or the kernel has given it up.
func (c *conn) isGone() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, _ := unix.Poll(fds, 0)
		gone = n > 0
	})
	return gone || err != nil
}

// look closes the connections of clients that are gone, and of those that do not take the end.
func (s *Server) look() {
	for _, c := range s.connections() {
		if !c.lookParting() && c.isGone() {
			_ = c.Close()
		}
	}
}

// hangUp closes all connections.
func (s *Server) hangUp() {
	for _, c := range s.connections() {
		c.ignoreInput()
		_ = c.Close()
	}
}

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		all = append(all, c)
	}
	return all
}
