// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// clientTunnel is the client's side of a tunnel, which may cut messages anywhere.
type clientTunnel struct {
	net.Conn
	socket  *websocket.Conn
	message io.Reader
}

func (c *clientTunnel) Read(b []byte) (int, error) {
	for {
		if c.message == nil {
			_, message, err := c.socket.NextReader()
			if err != nil {
				return 0, io.EOF
			}
			c.message = message
		}
		n, err := c.message.Read(b)
		if errors.Is(err, io.EOF) {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *clientTunnel) Write(b []byte) (int, error) {
	for i, part := range [][]byte{b[:len(b)/3], b[len(b)/3:]} {
		if err := c.socket.WriteMessage(websocket.BinaryMessage, part); err != nil {
			return i * len(b) / 3, err
		}
	}
	return len(b), nil
}

// crictl port-forward --transport websocket was refused with 403: its WebSocket carries SPDY.
func TestAPortForwardOfSPDYThroughAWebSocket(t *testing.T) {
	w := newWorld(t)
	sent := bytes.Repeat([]byte("tunnel"), 300_000)
	w.podSays(func(conn net.Conn) { _, _ = io.CopyN(conn, conn, int64(len(sent))) })
	s := serve(t, w, nil)
	resp, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{Subprotocols: []string{tunnelProtocol}}
	socket, answer, err := dialer.Dial("ws"+strings.TrimPrefix(resp.GetUrl(), "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	defer socket.Close()
	conn, err := spdy.NewClientConnection(&clientTunnel{Conn: socket.NetConn(), socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"0", "1"} {
		headers := func(kind string) http.Header {
			return http.Header{"Streamtype": {kind}, "Port": {"1"}, "Requestid": {request}}
		}
		problem, err := conn.CreateStream(headers("error"))
		if err != nil {
			t.Fatal(err)
		}
		data, err := conn.CreateStream(headers("data"))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = data.Write(sent)
			_ = data.Close()
		}()
		got, err := io.ReadAll(data)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d of %d bytes came back: %v", len(got), len(sent), err)
		}
		if b, _ := io.ReadAll(problem); len(b) > 0 {
			t.Errorf("got %q", b)
		}
	}
	_ = socket.Close()
	until(t, "nothing is left", func() bool { return len(s.connections()) == 0 })
	expectNoSPDY(t)
}
