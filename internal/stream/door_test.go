// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
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
