// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
)

// Drain ends the server so that its clients notice as little as possible. The caller calls it once,
// instead of Stop.
//
// The server stops accepting connections and tells its clients to make new calls elsewhere, on new
// connections: they wait in the listener's backlog for the next server, if another process keeps
// the listener. When the clients have learnt that, Drain waits for the unary calls in flight. Then
// it ends the streams; a client that subscribes again at once does so on a new connection. Calls
// that have not ended after about timeout are cut off.
func (s *Server) Drain(timeout time.Duration) {
	end := time.Now().Add(timeout)
	s.stopAccepting(end)
	graceful := make(chan struct{})
	// GracefulStop also waits for handlers that ignore their contexts, so do not wait for it for ever
	go func() {
		defer close(graceful)
		s.GracefulStop()
	}()
	s.wait(end, graceful, func() bool {
		for c := range s.mu.conns {
			if !c.moved() {
				return false
			}
		}
		return true
	})
	s.wait(end, graceful, func() bool { return s.mu.unary == 0 })
	close(s.ending)
	if last := time.Now().Add(time.Second); end.Before(last) {
		end = last
	}
	never := func() bool { return false }
	s.wait(end, graceful, never)
	s.Stop()
	s.wait(time.Now().Add(time.Second), graceful, never)
}

// stopAccepting closes the listener and waits until every connection that was accepted is served.
// gRPC closes a connection that it has accepted and not begun to serve when it is asked to stop,
// and the call of a client that has just connected would fail.
func (s *Server) stopAccepting(end time.Time) {
	s.change(func() { s.mu.draining = true })
	s.mu.Lock()
	lis := s.mu.lis
	s.mu.Unlock()
	for _, l := range lis { // none: not served yet
		_ = l.Close()
	}
	s.wait(end, nil, func() bool {
		for c := range s.mu.conns {
			if !c.greeted.Load() {
				return false
			}
		}
		return s.mu.accepting == 0
	})
}

// wait waits until ok, which is called with the lock held, returns true, or until over is closed,
// at most until end.
func (s *Server) wait(end time.Time, over <-chan struct{}, ok func() bool) {
	t := time.NewTimer(time.Until(end))
	defer t.Stop()
	for {
		s.mu.Lock()
		if s.mu.changed == nil {
			s.mu.changed = make(chan struct{})
		}
		done, changed := ok(), s.mu.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-over:
			return
		case <-t.C:
			return
		}
	}
}

// change makes a change that Drain may wait for.
func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	if s.mu.changed != nil {
		close(s.mu.changed)
		s.mu.changed = nil
	}
}

// errEnding is the error of a stream when berth stops.
var errEnding = fmt.Errorf("berth is being stopped; subscribe again: %w", errdefs.ErrUnavailable)

// endingStream is a stream whose context ends with the server.
type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s endingStream) Context() context.Context { return s.ctx }

// Serve serves on a listener until the server is ended. It may be called for several listeners, of
// which Drain closes all.
func (s *Server) Serve(lis net.Listener) error {
	draining := false
	s.change(func() {
		if draining = s.mu.draining; !draining {
			s.mu.lis = append(s.mu.lis, lis)
			s.mu.accepting++
		}
	})
	if draining {
		return lis.Close()
	}
	err := s.Server.Serve(listener{lis, s})
	s.change(func() {
		s.mu.accepting--
		draining = s.mu.draining
	})
	if draining {
		return nil // Drain has closed the listener
	}
	return err
}

// listener makes the connections that Drain looks at.
type listener struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, server: l.server}
	l.server.change(func() { l.server.mu.conns[c] = true })
	return c, nil
}

// conn is a connection that knows whether its client was asked to make new calls elsewhere. gRPC
// does not report that, so the headers of the HTTP/2 frames are read on their way out (RFC 9113,
// section 4.1).
type conn struct {
	net.Conn
	server *Server

	header  [9]byte
	filled  int // bytes of header
	payload int // bytes to come before the next header
	goAways atomic.Int32
	greeted atomic.Bool // the server has sent its settings, so it serves the connection
}

const frameGoAway = 0x7

// moved reports whether the client makes new calls elsewhere. gRPC sends two GOAWAY frames: one
// that announces the end, together with a ping, and once the client has answered the ping, the
// final one.
func (c *conn) moved() bool { return c.goAways.Load() >= 2 }

// Write implements net.Conn. gRPC does not call it concurrently.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if !c.greeted.Load() {
		c.server.change(func() { c.greeted.Store(true) })
	}
	c.sent(p[:n])
	return n, err
}

func (c *conn) sent(p []byte) {
	for len(p) > 0 {
		if c.payload > 0 {
			n := min(c.payload, len(p))
			c.payload, p = c.payload-n, p[n:]
			continue
		}
		n := copy(c.header[c.filled:], p)
		c.filled, p = c.filled+n, p[n:]
		if c.filled < len(c.header) {
			return
		}
		c.filled = 0
		c.payload = int(c.header[0])<<16 | int(c.header[1])<<8 | int(c.header[2])
		if c.header[3] == frameGoAway {
			c.server.change(func() { c.goAways.Add(1) })
		}
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.server.change(func() { delete(c.server.mu.conns, c) })
	return c.Conn.Close()
}
