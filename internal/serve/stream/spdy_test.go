// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// dialSPDY upgrades a connection to SPDY. It returns the connection below as well, for a test that
// breaks it.
func dialSPDY(t *testing.T, at, protocol string) (httpstream.Connection, *net.TCPConn) {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	far, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	_, _ = fmt.Fprintf(far, "POST %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: %s\r\nContent-Length: 0\r\n\r\n", u.RequestURI(), u.Host, protocol)
	resp, err := http.ReadResponse(bufio.NewReader(far), nil) // nothing follows until a stream is opened
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp.Status)
	}
	conn, err := spdy.NewClientConnection(far)
	if err != nil {
		t.Fatal(err)
	}
	return conn, far.(*net.TCPConn)
}

func open(t *testing.T, conn httpstream.Connection, kind string) httpstream.Stream {
	t.Helper()
	s, err := conn.CreateStream(http.Header{"Streamtype": {kind}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Server) execURL(t *testing.T, req *runtimeapi.ExecRequest) string {
	t.Helper()
	resp, err := s.Exec(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetUrl()
}

// expectNoSPDY waits until no goroutine of a SPDY connection is left, at either end of it.
func expectNoSPDY(t *testing.T) {
	t.Helper()
	buf := make([]byte, 8<<20)
	until(t, "the goroutines of SPDY have ended", func() bool {
		return !strings.Contains(string(buf[:runtime.Stack(buf, true)]), "spdystream.(*Connection)")
	})
}

func TestAClientTalksWithAProcessOverSPDY(t *testing.T) {
	w := newWorld(t)
	w.program = echo
	s := serve(t, w, nil)
	conn, tcp := dialSPDY(t, s.execURL(t, execRequest()), "v4.channel.k8s.io")
	problem, stdin, stdout := open(t, conn, "error"), open(t, conn, "stdin"), open(t, conn, "stdout")
	if _, err := io.WriteString(stdin, "hello\n"); err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(stdout)
	status, _ := io.ReadAll(problem)
	if string(out) != "hello\n" || !strings.Contains(string(status), `"42"`) {
		t.Errorf("got %q and %q", out, status)
	}
	until(t, "nothing is left", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
	_ = tcp.Close()
	expectNoSPDY(t)
}

func TestAClientAttachesOverSPDY(t *testing.T) {
	w := newWorld(t)
	stdio := newStdio(w)
	s := serve(t, w, nil)
	resp, err := s.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "c1", Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	conn, tcp := dialSPDY(t, resp.GetUrl(), "v4.channel.k8s.io")
	problem, stdin, stdout, stderr := open(t, conn, "error"), open(t, conn, "stdin"), open(t, conn, "stdout"), open(t, conn, "stderr")
	if _, err := io.WriteString(stdin, "typed"); err != nil {
		t.Fatal(err)
	}
	_ = stdin.Close()
	typed := make([]byte, 5)
	if _, err := io.ReadFull(stdio.stdin, typed); err != nil || string(typed) != "typed" {
		t.Errorf("the container got %q %v", typed, err)
	}
	stdio.output <- "out"
	stdio.output <- "stderr:err"
	until(t, "the client is attached", func() bool { return len(stdio.output) == 0 })
	close(w.ended)
	out, _ := io.ReadAll(stdout)
	errs, _ := io.ReadAll(stderr)
	status, _ := io.ReadAll(problem)
	if string(out) != "out" || string(errs) != "err" || !strings.Contains(string(status), "Success") {
		t.Errorf("got %q, %q and %q", out, errs, status)
	}
	_ = tcp.Close()
	expectNoSPDY(t)
}

// PROPERTIES 12: a client that was upgraded and does not open its streams is hung up on, so that it
// does not take the place of others. What it has sent meanwhile is not waited for either.
func TestAClientThatDoesNotOpenItsStreamsIsHungUpOn(t *testing.T) {
	w := newWorld(t)
	w.program = untilKilled
	s := serve(t, w, nil)
	for _, kinds := range [][]string{{}, {"error"}, {"error", "stdin"}} {
		conn, tcp := dialSPDY(t, s.execURL(t, execRequest()), "v4.channel.k8s.io")
		var last httpstream.Stream
		for _, kind := range kinds {
			last = open(t, conn, kind)
		}
		for i := 0; last != nil && i < 100; i++ {
			_, _ = io.WriteString(last, "nobody reads this")
		}
		until(t, "the server hangs up", func() bool { return len(s.connections()) == 0 })
		_ = tcp.Close()
		expectNoSPDY(t)
	}
	if w.left() != 0 {
		t.Error("a process was started")
	}
}

// PROPERTIES 12: a client that does not read how its call has ended is hung up on.
func TestAClientThatNeverReadsIsHungUpOn(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w, nil)
	endless := func() string {
		at, err := s.issueRemote("exec", "p1", streams{stdout: true}, false, func(_ context.Context, c client) error {
			go func() { // it fills the connection
				for err := error(nil); err == nil; {
					_, err = c.stdout.Write(make([]byte, 1<<16))
				}
			}()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	socket := dialSocket(t, endless())
	defer socket.Close()
	until(t, "the server hangs up on a WebSocket", func() bool { return len(s.connections()) == 0 })
	conn, _ := dialSPDY(t, endless(), "v4.channel.k8s.io")
	problem, stdout := open(t, conn, "error"), open(t, conn, "stdout")
	until(t, "the server hangs up on SPDY", func() bool { return len(s.connections()) == 0 })
	_, _ = problem.Reset(), stdout.Reset() // otherwise this end waits for a reader
	expectNoSPDY(t)
}

// PROPERTIES 12: the connection does not outlive its call, although its client does not hang up.
func TestAConnectionEndsWithItsCall(t *testing.T) {
	w := newWorld(t)
	w.program = echo
	s := serve(t, w, nil)
	conn := dialSocket(t, s.execURL(t, execRequest()))
	defer conn.Close()
	if _, err := conn.Write([]byte("\x00hello\n")); err != nil {
		t.Fatal(err)
	}
	until(t, "the server hangs up on a WebSocket", func() bool { return len(s.connections()) == 0 })
	url := s.execURL(t, execRequest())
	w.mu.Lock()
	w.running = false
	w.mu.Unlock()
	refused := dialSocket(t, url)
	defer refused.Close()
	if got := receive(refused); !strings.Contains(got[3], "not running") {
		t.Errorf("got %q", got)
	}
	until(t, "the server hangs up on what it has refused", func() bool { return len(s.connections()) == 0 })
}

// PROPERTIES 12: a stream more than the client may open left goroutines for ever when the client
// hung up.
func TestAStreamTooManyLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.program = untilKilled
	s := serve(t, w, nil)
	for _, kind := range []string{"stdin", "stderr", "nonsense"} {
		conn, tcp := dialSPDY(t, s.execURL(t, execRequest()), "v4.channel.k8s.io")
		for _, kind := range []string{"error", "stdin", "stdout"} {
			open(t, conn, kind)
		}
		until(t, "the process runs", func() bool { return w.left() == 1 })
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if _, err := conn.CreateStream(http.Header{"Streamtype": {kind}}); err == nil {
				t.Errorf("one more stream %q is opened", kind)
			}
		}()
		select {
		case <-answered:
		case <-t.Context().Done():
		}
		_ = tcp.Close()
		until(t, "nothing is left", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
		expectNoSPDY(t)
	}
}

// PROPERTIES 12: a client hangs up while its streams are being opened.
func TestAClientThatVanishesWhileItOpensStreamsLeavesNothing(t *testing.T) {
	for name, linger := range map[string]int{"orderly": -1, "reset": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.program = untilKilled
			s := serve(t, w, nil)
			for range 20 {
				resp, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
				if err != nil {
					t.Fatal(err)
				}
				for protocol, at := range map[string]string{
					"v4.channel.k8s.io":  s.execURL(t, execRequest()),
					"portforward.k8s.io": resp.GetUrl(),
				} {
					conn, tcp := dialSPDY(t, at, protocol)
					if err := tcp.SetLinger(linger); err != nil {
						t.Fatal(err)
					}
					sent, closed := make(chan struct{}, 40), make(chan struct{})
					for i := range 40 {
						kind := []string{"error", "data", "stdin", "stdout"}[i%4]
						go func() {
							sent <- struct{}{}
							headers := http.Header{"Streamtype": {kind}, "Port": {"1"}, "Requestid": {fmt.Sprint(i / 4)}}
							if stream, err := conn.CreateStream(headers); err == nil {
								<-closed
								_ = stream.Reset() // otherwise this end waits for a reader
							}
						}()
					}
					for range 40 {
						<-sent
					}
					_ = tcp.Close()
					close(closed)
				}
			}
			until(t, "nothing is left", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
			expectNoSPDY(t)
		})
	}
}

// A terminal's size that does not end must not fill the memory, and what is not a size must not
// keep the input waiting.
func TestSizesWithoutAnEnd(t *testing.T) {
	w := newWorld(t)
	w.program = echo
	s := serve(t, w, nil)
	req := execRequest()
	req.Tty = true
	conn, _ := dialSPDY(t, s.execURL(t, req), "v4.channel.k8s.io")
	problem, stdin, stdout, resize := open(t, conn, "error"), open(t, conn, "stdin"), open(t, conn, "stdout"), open(t, conn, "resize")
	for range 1000 {
		if _, err := io.WriteString(resize, `{"Width":80,"Height":25}`); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = io.WriteString(resize, `{"`)
	for range 1000 {
		if _, err := resize.Write(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = io.WriteString(stdin, "hello\n")
	out, _ := io.ReadAll(stdout)
	status, _ := io.ReadAll(problem)
	if string(out) != "hello\n" || !strings.Contains(string(status), `"42"`) {
		t.Errorf("got %q and %q", out, status)
	}
	socket := dialSocket(t, s.execURL(t, req))
	defer socket.Close()
	for _, message := range []string{"\x04{\"", "\x04" + strings.Repeat("x", 1<<20), "\x04{}", "\x00hello\n"} {
		if err := websocket.Message.Send(socket, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	if got := receive(socket); got[1] != "hello\n" || !strings.Contains(got[3], `"42"`) {
		t.Errorf("got %q", got)
	}
	until(t, "nothing is left", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
}

// A stream of a connection whose second stream never comes is ended; others go on.
func TestHalfAForwardedConnectionIsGivenUp(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w, nil)
	resp, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	conn, tcp := dialSPDY(t, resp.GetUrl(), "portforward.k8s.io")
	headers := func(kind, request string) http.Header {
		return http.Header{"Streamtype": {kind}, "Port": {"1"}, "Requestid": {request}}
	}
	half, err := conn.CreateStream(headers("data", "half"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.CreateStream(headers("data", "half")); err == nil {
		t.Error("a connection has two streams for its data")
	}
	if _, err := io.ReadAll(half); err != nil { // until it is given up
		t.Error(err)
	}
	problem, err := conn.CreateStream(headers("error", "whole"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.CreateStream(headers("data", "whole")); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(problem); !strings.Contains(string(b), "connection refused") {
		t.Errorf("got %q", b)
	}
	_ = tcp.Close()
	until(t, "nothing is left", func() bool { return len(s.connections()) == 0 })
	expectNoSPDY(t)
}
