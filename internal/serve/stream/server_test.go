// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	testclient "berth/test/client"
)

// serve runs a server on a world without a virtual time, until the test's end.
func serve(t *testing.T, w *world, config *tls.Config) *Server {
	t.Helper()
	s, _ := serveUntil(t, w, config)
	return s
}

// serveUntil is serve for a test that stops the server.
func serveUntil(t *testing.T, w *world, config *tls.Config) (_ *Server, stop context.CancelFunc) {
	t.Helper()
	s := NewServer(ServerConfig{Address: "127.0.0.1:0", TLS: config, Logger: slog.New(slog.DiscardHandler)}, w.service)
	s.patience, s.interval = time.Second, 20*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(s.connections()); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
	until(t, "the server serves", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mu.base != nil
	})
	return s, cancel
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// left is how many processes there are.
func (w *world) left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.processes)
}

func execRequest() *runtimeapi.ExecRequest {
	return &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"cat"}, Stdin: true, Stdout: true}
}

// dialSocket connects with an exec or attach over a WebSocket.
func dialSocket(t *testing.T, url string) *websocket.Conn {
	t.Helper()
	conn, _ := testclient.WebSocket(t, url)
	return conn
}

// receive reads what the server sends, by channel.
func receive(conn *websocket.Conn) (got [5]string) {
	for {
		var b []byte
		if err := websocket.Message.Receive(conn, &b); err != nil || len(b) == 0 {
			return got
		}
		got[b[0]] += string(b[1:])
	}
}

// echo is a program that repeats a line.
func echo(p *fakeProcess) uint32 {
	line, _ := bufio.NewReader(p.stdin).ReadString('\n')
	_, _ = io.WriteString(p.stdout, line)
	p.closeOutput()
	return 42
}

func TestAClientTalksWithAProcess(t *testing.T) {
	for scheme, config := range map[string]*tls.Config{"http": nil, "https": certificate(t)} {
		t.Run(scheme, func(t *testing.T) {
			w := newWorld(t)
			w.program = echo
			s := serve(t, w, config)
			resp, err := s.Exec(t.Context(), execRequest())
			if err != nil || !strings.HasPrefix(resp.GetUrl(), scheme+"://127.0.0.1:") {
				t.Fatalf("got %v %v", resp, err)
			}
			conn := dialSocket(t, resp.GetUrl())
			defer conn.Close()
			if err := websocket.Message.Send(conn, []byte("\x00hello\n")); err != nil {
				t.Fatal(err)
			}
			got := receive(conn)
			if got[1] != "hello\n" || !strings.Contains(got[3], `"42"`) {
				t.Errorf("got %q", got)
			}
			until(t, "nothing is left", func() bool { return w.left() == 0 && w.directories() == 0 })
		})
	}
}

func certificate(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}
}

// Whoever has no URL of berth's cannot do anything, and a URL is good for one request.
func TestAURLIsGoodOnce(t *testing.T) {
	w := newWorld(t)
	w.program = echo
	s := serve(t, w, nil)
	resp, err := s.Exec(t.Context(), execRequest())
	if err != nil {
		t.Fatal(err)
	}
	url := resp.GetUrl()
	secret := strings.Split(url, "/")[3]
	if len(secret) < 26 { // of base32: 130 bits
		t.Errorf("%s has no secret", url)
	}
	get := func(url string) int {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for _, bad := range []string{
		strings.Replace(url, "/"+secret, "", 1),
		strings.Replace(url, secret, strings.Repeat("0", 32), 1),
		strings.Replace(url, "/exec/", "/attach/", 1) + "x",
		url[:strings.LastIndex(url, "/")+1],
	} {
		if code := get(bad); code != http.StatusNotFound {
			t.Errorf("%s: got %d", bad, code)
		}
	}
	if code := get(url); code == http.StatusNotFound { // not a request that can be upgraded
		t.Errorf("%s: got %d", url, code)
	}
	if code := get(url); code != http.StatusNotFound {
		t.Errorf("%s is good twice: got %d", url, code)
	}
}

// An unknown container was called a sandbox, since it was looked for among the sandboxes last.
func TestWhatIsNotFoundIsCalledWhatItWasAskedAs(t *testing.T) {
	w := newWorld(t)
	s := NewServer(ServerConfig{Address: "127.0.0.1:0"}, w.service)
	_, execSync := w.service.ExecSync(t.Context(), "x", []string{"ls"}, 0)
	_, exec := s.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "x", Cmd: []string{"cat"}, Stdout: true})
	_, attach := s.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "x", Stdout: true})
	_, forward := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "x"})
	for err, want := range map[error]string{
		execSync: `container "x": not found`,
		exec:     `container "x": not found`,
		attach:   `container "x": not found`,
		forward:  `sandbox "x": not found`,
	} {
		if !errdefs.IsNotFound(err) || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), " or ") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestRequestsThatCannotBeAreRefusedAtOnce(t *testing.T) {
	w := newWorld(t)
	s := NewServer(ServerConfig{Address: "127.0.0.1:0"}, w.service)
	if _, err := s.Exec(t.Context(), execRequest()); !errdefs.IsUnavailable(err) { // it does not run
		t.Errorf("got %v", err)
	}
	if _, err := s.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c2", Cmd: []string{"cat"}}); !errdefs.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c1"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "c2"}); !errdefs.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	if _, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "c1"}); !errdefs.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	if _, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1", Port: []int32{70000}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v", err)
	}
}

// A client that only looks must not end the container's input.
func TestAttachWithoutInputDoesNotEndTheInputOfTheContainer(t *testing.T) {
	w := newWorld(t)
	stdio := newStdio(w)
	stdio.once = true
	s := serve(t, w, nil)
	resp, err := s.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "c1", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	conn := dialSocket(t, resp.GetUrl())
	defer conn.Close()
	stdio.output <- "out"
	stdio.output <- "more"
	until(t, "the client is attached", func() bool { return len(stdio.output) == 0 })
	close(w.ended)
	if got := receive(conn); got[1] != "outmore" || !strings.Contains(got[3], "Success") {
		t.Errorf("got %q", got)
	}
	if stdio.ended.Load() {
		t.Error("the container's input was ended")
	}
}

// PROPERTIES 12: a client vanishes while the process neither writes nor reads what the client has
// sent, so that nobody reads from the connection.
func TestAProcessEndsWithItsClient(t *testing.T) {
	for name, input := range map[string]int{"a silent client": 0, "a client that fills the input": 64} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.program = untilKilled
			s := serve(t, w, nil)
			resp, err := s.Exec(t.Context(), execRequest())
			if err != nil {
				t.Fatal(err)
			}
			conn := dialSocket(t, resp.GetUrl())
			for range input {
				if err := websocket.Message.Send(conn, make([]byte, 512)); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the process runs", func() bool { return w.left() == 1 })
			for _, c := range s.connections() {
				if !c.redeemed.Load() {
					t.Error("the connection of a process would make room for another")
				}
			}
			_ = conn.Close()
			until(t, "nothing is left", func() bool {
				return w.left() == 0 && w.directories() == 0 && len(s.connections()) == 0
			})
		})
	}
}

// PROPERTIES 29 and 47: a client takes a connection that ends without a word for a command that has
// succeeded. So it is told when berth stops.
func TestAClientIsToldThatBerthStops(t *testing.T) {
	for name, connect := range map[string]func(url string) (status func() string){
		"WebSocket": func(url string) func() string {
			conn := dialSocket(t, url)
			return func() string { return receive(conn)[3] }
		},
		"SPDY": func(url string) func() string {
			conn, _ := dialSPDY(t, url, "v4.channel.k8s.io")
			problem := open(t, conn, "error")
			open(t, conn, "stdin")
			open(t, conn, "stdout")
			return func() string {
				b, _ := io.ReadAll(problem)
				return string(b)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.program = untilKilled
			s, stop := serveUntil(t, w, nil)
			status := connect(s.execURL(t, execRequest()))
			until(t, "the process runs", func() bool { return w.left() == 1 })
			stop() // at once, as the daemon stops its parts
			w.stop()
			if got := status(); !strings.Contains(got, "Failure") {
				t.Errorf("the client was told %q", got)
			}
		})
	}
}

// PROPERTIES 29: a client that fills the input until nothing goes on, and whose connection is
// reset.
func TestAProcessEndsWithAClientWhoseInputIsStuck(t *testing.T) {
	w := newWorld(t)
	w.program = untilKilled
	s := serve(t, w, nil)
	resp, err := s.Exec(t.Context(), execRequest())
	if err != nil {
		t.Fatal(err)
	}
	conn, tcp := testclient.WebSocket(t, resp.GetUrl())
	var sent atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err := error(nil); err == nil; {
			err = websocket.Message.Send(conn, make([]byte, 4096))
			sent.Add(1)
		}
	}()
	until(t, "nothing goes on", func() bool {
		before := sent.Load()
		time.Sleep(300 * time.Millisecond)
		return before > 0 && sent.Load() == before
	})
	if err := tcp.SetLinger(0); err != nil { // otherwise the kernel goes on sending what is not taken
		t.Fatal(err)
	}
	_ = tcp.Close()
	<-ended
	until(t, "nothing is left", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
}

func TestGarbageLeavesNothing(t *testing.T) {
	w := newWorld(t)
	w.program = untilKilled
	s := serve(t, w, nil)
	resp, err := s.Exec(t.Context(), execRequest())
	if err != nil {
		t.Fatal(err)
	}
	conn := dialSocket(t, resp.GetUrl())
	until(t, "the process runs", func() bool { return w.left() == 1 })
	_ = websocket.Message.Send(conn, []byte("\x04{not a size"))
	_ = websocket.Message.Send(conn, []byte{99, 1, 2, 3}) // there is no such channel
	_, _ = conn.Write(nil)
	_ = conn.Close()
	until(t, "nothing is left", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
}

// Whoever can connect to the server, as a pod in the host's network can, kept all others from being
// served by connections on which nothing comes. PROPERTIES 20.
func TestConnectionsWithoutARequestMakeRoom(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w, nil)
	add := func(redeemed bool) *conn {
		own := newConn(tcpPair(t), s)
		own.redeemed.Store(redeemed)
		s.add(own)
		return own
	}
	stream, first := add(true), add(false)
	for range maxWaiting - 1 {
		add(false)
	}
	if n := len(s.connections()); n != maxWaiting+1 || first.gone.Err() != nil {
		t.Errorf("there are %d; the oldest is gone: %v", n, first.gone.Err())
	}
	add(false)
	if n := len(s.connections()); n != maxWaiting+1 || first.gone.Err() == nil || stream.gone.Err() != nil {
		t.Errorf("there are %d; the oldest is gone: %v; a stream is gone: %v", n, first.gone.Err(), stream.gone.Err())
	}
	s.hangUp()
}

// tcpPair is a connection whose other end is open until the test ends.
func tcpPair(t *testing.T) *net.TCPConn {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	far, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	accepted, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return accepted.(*net.TCPConn)
}

func TestPortForwardTriesBothFamilies(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			lis, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer lis.Close()
			go func() {
				for {
					c, err := lis.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						b, _ := io.ReadAll(c)
						_, _ = fmt.Fprintf(c, "got %s", b)
					}()
				}
			}()
			w := newWorld(t)
			port := lis.Addr().(*net.TCPAddr).Port
			st := newFakeStream("hello")
			if err := w.service.PortForward(t.Context(), "p1", int32(port), st); err != nil {
				t.Fatal(err)
			}
			if got := st.written(); got != "got hello" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestPortForwardSaysThatNobodyListens(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := lis.Addr().(*net.TCPAddr).Port
	_ = lis.Close()
	w := newWorld(t)
	err = w.service.PortForward(t.Context(), "p1", int32(port), newFakeStream(""))
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
	if n := w.service.ports.Usage().Used; n != 0 {
		t.Errorf("%d are counted", n)
	}
}

// fakeStream is a client that says something and then listens.
type fakeStream struct {
	io.Reader
	all strings.Builder
}

func newFakeStream(says string) *fakeStream { return &fakeStream{Reader: strings.NewReader(says)} }

func (s *fakeStream) Write(b []byte) (int, error) { return s.all.Write(b) }
func (s *fakeStream) Close() error                { return nil }
func (s *fakeStream) written() string             { return s.all.String() }
