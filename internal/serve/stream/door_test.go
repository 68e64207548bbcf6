// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/websocket"
)

// admit lets clients in through a Unix socket until the test's end, or until stop.
func admit(t *testing.T, s *Server) (socket string, stop context.CancelFunc) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Admit(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket, cancel
}

// through connects a client with what a URL stands for, through a socket.
func through(t *testing.T, socket, at string) *websocket.Conn {
	t.Helper()
	raw, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme = "ws"
	cfg, err := websocket.NewConfig(u.String(), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Protocol = []string{v4BinaryProtocol}
	conn, err := websocket.NewClient(cfg, raw)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// A client that comes through another listener has what one at the server's address has, and needs a URL as
// well. Nothing is left of one that vanishes, and one that is there when berth stops is told so.
func TestAClientComesThroughAnotherListener(t *testing.T) {
	w := newWorld(t)
	w.program = here(echo)
	s, stopServer := serveUntil(t, w, nil)
	socket, stop := admit(t, s)
	open := func() *websocket.Conn {
		t.Helper()
		resp, err := s.Exec(t.Context(), execRequest())
		if err != nil {
			t.Fatal(err)
		}
		conn := through(t, socket, resp.GetUrl())
		awaitHere(t, conn)
		return conn
	}

	conn := open()
	sendHello(t, conn)
	if got := receive(conn); got[1] != "hello\n" || !strings.Contains(got[3], `"42"`) {
		t.Errorf("got %q", got)
	}

	vanishes := open()
	_ = vanishes.Close()
	until(t, "nothing is left of a client that is gone", func() bool { return w.left() == 0 && len(s.connections()) == 0 })

	raw, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := io.WriteString(raw, "GET /exec/guessed HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(raw); err != nil || !strings.Contains(string(b), "404") {
		t.Errorf("a client without a URL is told %q, %v", b, err)
	}

	stays := open()
	stop() // at once, as the daemon stops its parts
	stopServer()
	w.stop()
	if got := receive(stays); !strings.Contains(got[3], "Failure") {
		t.Errorf("a client hears %q of the end", got)
	}
	until(t, "nothing is left after the end", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
}

// counting is a listener that counts how often it is closed. Its Accept may return after the end of ctx with a client
// that came before it, and before anything that follows from that end was done.
type counting struct {
	net.Listener
	end    context.CancelFunc
	late   net.Conn
	closed atomic.Int32
}

func (c *counting) Accept() (net.Conn, error) {
	c.end()
	return c.late, nil
}

func (c *counting) Close() error {
	c.closed.Add(1)
	return nil
}

// unfollowed is a context of whose end nobody is told but who asks.
type unfollowed struct {
	context.Context
	ended atomic.Bool
}

func (u *unfollowed) Done() <-chan struct{} { return make(chan struct{}) }

func (u *unfollowed) Err() error {
	if u.ended.Load() {
		return context.Canceled
	}
	return nil
}

// The listener is closed once, whichever way Admit returns: a second time could remove the socket of the next berth.
func TestTheOtherListenerIsClosedOnce(t *testing.T) {
	s := NewServer(ServerConfig{Logger: slog.New(slog.DiscardHandler)}, newWorld(t).service)
	client, other := net.Pipe()
	defer other.Close()
	ctx := &unfollowed{Context: context.Background()}
	lis := &counting{late: client, end: func() { ctx.ended.Store(true) }}
	if err := s.Admit(ctx, lis); err != nil || lis.closed.Load() != 1 {
		t.Errorf("it is closed %d times: %v", lis.closed.Load(), err)
	}
	if _, err := other.Write([]byte("x")); err == nil {
		t.Error("a client that came too late is let in")
	}

	told, cancel := context.WithCancel(context.Background())
	client, other = net.Pipe()
	defer other.Close()
	lis = &counting{late: client, end: cancel}
	if err := s.Admit(told, lis); err != nil {
		t.Error(err)
	}
	until(t, "it is closed", func() bool { return lis.closed.Load() > 0 })
	if n := lis.closed.Load(); n != 1 {
		t.Errorf("it is closed %d times", n)
	}
}
