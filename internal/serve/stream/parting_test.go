// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// slowConn is a connection of a client with a small receive buffer, which reads when it may.
type slowConn struct {
	net.Conn
	may sync.RWMutex
}

// Read implements net.Conn.
func (c *slowConn) Read(b []byte) (int, error) {
	c.may.RLock()
	c.may.RUnlock() //nolint:staticcheck,gocritic // it waits
	return c.Conn.Read(b)
}

func dialSlowly(t *testing.T, at string) (*slowConn, *url.URL) {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		return err
	}}
	conn, err := d.DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if u.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	return &slowConn{Conn: conn}, u
}

// A slowClient asks for a call over its protocol. ping sends a ping, and read reads the output and
// the status to their ends.
type slowClient struct {
	conn *slowConn
	ping []byte
	read func() (output []byte, status string, err error)
}

func slowSocket(protocol string) func(t *testing.T, at string) slowClient {
	return func(t *testing.T, at string) slowClient {
		t.Helper()
		conn, u := dialSlowly(t, at)
		u.Scheme = "ws" // what is below has TLS already
		//nolint:bodyclose,staticcheck // it takes this connection, and the answer to a change of the protocol has none
		socket, _, err := websocket.NewClient(conn, u, http.Header{"Sec-Websocket-Protocol": {protocol}}, 1024, 1024)
		if err != nil {
			t.Fatal(err)
		}
		return slowClient{
			conn: conn,
			ping: []byte{0x89, 0x80, 0, 0, 0, 0},
			read: func() ([]byte, string, error) { return readSocket(socket) },
		}
	}
}

// readSocket reads the output and the status of an exec until the server closes the WebSocket.
func readSocket(socket *websocket.Conn) (output []byte, status string, err error) {
	for {
		_, b, err := socket.ReadMessage()
		switch {
		case websocket.IsCloseError(err, websocket.CloseNormalClosure):
			return output, status, nil
		case err != nil:
			return output, status, err
		case len(b) > 0 && b[0] == remotecommand.StreamStdOut:
			output = append(output, b[1:]...)
		case len(b) > 0 && b[0] == remotecommand.StreamErr:
			status += string(b[1:])
		}
	}
}

func slowSPDY(t *testing.T, at string) slowClient {
	t.Helper()
	below, u := dialSlowly(t, at)
	_, _ = fmt.Fprintf(below, "POST %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n", u.RequestURI(), u.Host)
	resp, err := http.ReadResponse(bufio.NewReader(below), nil) // nothing follows until a stream is opened
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	conn, err := spdy.NewClientConnection(below)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	problem, stdout := open(t, conn, "error"), open(t, conn, "stdout")
	return slowClient{
		conn: below,
		ping: []byte{0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1},
		read: func() ([]byte, string, error) {
			output, err := io.ReadAll(stdout)
			if err != nil {
				return output, "", err
			}
			status, err := io.ReadAll(problem)
			return output, string(status), err
		},
	}
}

var slowClients = map[string]func(t *testing.T, at string) slowClient{
	"SPDY":         slowSPDY,
	"WebSocket v4": slowSocket(v4BinaryProtocol),
	"WebSocket v5": slowSocket(v5Protocol),
}

func withoutTLS(*testing.T) *tls.Config { return nil }

// PROPERTIES 60: the connection was closed as soon as the last word was written. When a client that
// reads slowly sent a ping then, the kernel reset the connection, and the rest of the output and
// the exit code were lost, which kubectl and crictl take for success.
func TestASlowReaderGetsEveryByteAndTheCode(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
	for name, open := range slowClients {
		for where, config := range map[string]func(t *testing.T) *tls.Config{
			"berth":          withoutTLS,
			"berth with TLS": certificate,
		} {
			t.Run(name+" of a "+where, func(t *testing.T) {
				w := newWorld(t)
				s := serve(t, w, config(t))
				at := s.execURL(t, &runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"cat"}, Stdout: true})
				stopped := make(chan struct{}) // the client reads nothing more
				w.program = func(p *fakeProcess) uint32 {
					<-stopped
					_, _ = p.stdout.Write(want)
					p.closeOutput()
					return 3
				}
				c := open(t, at)
				c.conn.may.Lock()
				close(stopped)
				until(t, "the call has ended", func() bool { return s.service.streams.Usage().Used == 0 })
				for range 3 {
					if _, err := c.conn.Write(c.ping); err != nil {
						t.Error(err)
					}
				}
				c.conn.may.Unlock()
				got, status, err := c.read()
				if !bytes.Equal(got, want) || !strings.Contains(status, `"3"`) || err != nil {
					t.Errorf("got %d of %d bytes, the status %q, and %v", len(got), len(want), status, err)
				}
			})
		}
	}
}

// PROPERTIES 60: clients that do not close their connections when their streams have ended use
// nothing up, and do not keep others from their ends.
func TestClientsThatDoNotCloseMakeRoom(t *testing.T) {
	w := newWorld(t)
	s := NewServer(ServerConfig{}, w.service)
	var all []*conn
	for range maxParting + 1 {
		own := newConn(tcpPair(t), s)
		own.redeemed.Store(true)
		s.add(own)
		own.startParting(own)
		all = append(all, own)
	}
	if all[0].over.Err() == nil || all[1].over.Err() != nil || all[maxParting].over.Err() != nil {
		t.Errorf("the first, the second and the last are closed: %v, %v, %v", all[0].over.Err(), all[1].over.Err(), all[maxParting].over.Err())
	}
	s.hangUp()
}

// A client over version 5 of the protocol ends its input with a message, as kubectl and crictl do.
func TestAClientEndsItsInputOverAWebSocket(t *testing.T) {
	w := newWorld(t)
	w.program = func(p *fakeProcess) uint32 {
		_, _ = io.Copy(p.stdout, p.stdin)
		p.closeOutput()
		return 42
	}
	s := serve(t, w, nil)
	_, u := dialSlowly(t, s.execURL(t, execRequest()))
	u.Scheme = "ws"
	//nolint:bodyclose // the answer to a change of the protocol has none
	conn, _, err := (&websocket.Dialer{Subprotocols: []string{v5Protocol}}).DialContext(t.Context(), u.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, message := range []string{"\x00hello", "\xff\x09", "\xff", "\xff\x00"} {
		if err := conn.WriteMessage(websocket.BinaryMessage, []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	if got, status, err := readSocket(conn); string(got) != "hello" || !strings.Contains(status, `"42"`) || err != nil {
		t.Errorf("got %q, the status %q, and %v", got, status, err)
	}
}
