// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
)

// WebSocket connects with an exec or attach at the URL that CRI has returned, in the protocol
// v4.channel.k8s.io. It returns the connection below as well, for a test that breaks it. The
// certificate of the server is not checked.
func WebSocket(t *testing.T, url string) (*websocket.Conn, *net.TCPConn) {
	t.Helper()
	cfg, err := websocket.NewConfig("ws"+strings.TrimPrefix(url, "http"), "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Protocol = []string{"v4.channel.k8s.io"}
	addr, err := net.ResolveTCPAddr("tcp", cfg.Location.Host)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.DialTCP("tcp", nil, addr)
	if err != nil {
		t.Fatal(err)
	}
	below := io.ReadWriteCloser(tcp)
	if cfg.Location.Scheme == "wss" {
		below = tls.Client(tcp, &tls.Config{InsecureSkipVerify: true})
	}
	conn, err := websocket.NewClient(cfg, below)
	if err != nil {
		t.Fatal(err)
	}
	conn.PayloadType = websocket.BinaryFrame
	return conn, tcp
}
