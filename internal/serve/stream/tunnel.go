// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/streaming/pkg/httpstream"
)

// tunnelProtocol is the protocol of a WebSocket that carries a connection of SPDY with the streams
// of a port-forward: kubectl has asked the API server for it since Kubernetes 1.31, and crictl asks
// a runtime for it. See https://github.com/kubernetes/enhancements/issues/4006.
const tunnelProtocol = portforward.WebsocketsSPDYTunnelingPortForwardV1

// tunnel is the connection of SPDY that a WebSocket carries.
type tunnel struct {
	net.Conn // the connection of the WebSocket itself, for its addresses
	messages *channel
}

// upgradeTunnel upgrades the connection of a request to a WebSocket that carries SPDY. If it
// cannot, it has answered the client, and returns nil. The caller closes the connection.
func upgradeTunnel(w http.ResponseWriter, req *http.Request, _ string,
	accept func(c *spdyConn, stream httpstream.Stream) error, opened func(c *spdyConn, stream httpstream.Stream),
) *spdyConn {
	s := upgradeSocket(w, req, []string{tunnelProtocol}, []use{{read: true, write: true}})
	if s == nil {
		return nil
	}
	t := tunnel{s.conn.NetConn(), s.channels[0]}
	return serveSPDY(framed{t, &frames{from: t.messages}, s.own, s}, accept, opened)
}

// Read reads from the messages of the client.
func (t tunnel) Read(b []byte) (int, error) { return t.messages.Read(b) }

// Write sends a message to the client.
func (t tunnel) Write(b []byte) (int, error) { return t.messages.Write(b) }
