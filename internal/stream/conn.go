// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// lookInterval is how often the server looks for clients that are gone.
const lookInterval = 2 * time.Second

// conn is a client's connection. Once it is upgraded, net/http does not look after it any more: conn
// ends the context of the request when the client is gone. The reader of the connection would notice
// that, too, but it waits where a process does not take its input.
type conn struct {
	*net.TCPConn
	server *Server
	gone   context.Context
	leave  context.CancelFunc
}

// listener counts the connections.
type listener struct {
	net.Listener
	server *Server
}

// Accept waits for a client. One that is too many is hung up on.
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
		c := &conn{TCPConn: tcp, server: l.server}
		c.gone, c.leave = context.WithCancel(context.Background())
		if l.server.add(c) {
			return c, nil
		}
		l.server.cfg.Logger.Warn("a client of the streaming server is refused: there are too many", "client", tcp.RemoteAddr())
		c.leave()
		_ = tcp.Close()
	}
}

func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.conns) >= maxConnections {
		return false
	}
	s.mu.conns[c] = true
	return true
}

// connContext gives requests the context of their connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, ok := c.(*conn)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(own.gone, cancel)
	return ctx
}

// Read reads. An end or an error says that the client is gone.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err != nil && !isTimeout(err) {
		c.leave()
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
	c.server.mu.Unlock()
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
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} //nolint:gosec // a descriptor
		n, _ := unix.Poll(fds, 0)
		gone = n > 0
	})
	return gone || err != nil
}

// look closes the connections of clients that are gone.
func (s *Server) look() {
	for _, c := range s.connections() {
		if c.isGone() {
			_ = c.Close()
		}
	}
}

// hangUp closes all connections.
func (s *Server) hangUp() {
	for _, c := range s.connections() {
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
