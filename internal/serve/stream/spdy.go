// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/moby/spdystream"
	framing "github.com/moby/spdystream/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// spdyConn is a connection that was upgraded to SPDY, and the streams that its client has opened.
//
// The library calls take in a goroutine that reads frames. If take waited for a client that has
// gone, or if an unread stream were not reset in the end, that goroutine would stay for ever, even
// after the connection is closed. So take never waits, and close resets every stream. That is why
// berth does not serve SPDY with cri-streaming, which does neither. It does not use the upgrade of
// k8s.io/streaming either, which lets a client open streams with headers of any size.
type spdyConn struct {
	conn  *spdystream.Connection
	below framed
	// accept decides, under mu, whether a stream is opened.
	accept func(c *spdyConn, stream httpstream.Stream) error
	// opened is called when a stream was opened. It must not wait.
	opened func(c *spdyConn, stream httpstream.Stream)

	mu      sync.Mutex
	closed  bool
	streams map[uint32]httpstream.Stream
}

// upgrade upgrades the connection of a request to SPDY. If it cannot, it has answered the client,
// and returns nil.
func upgrade(w http.ResponseWriter, req *http.Request, protocol string,
	accept func(c *spdyConn, stream httpstream.Stream) error, opened func(c *spdyConn, stream httpstream.Stream),
) *spdyConn {
	if !httpstream.IsUpgradeRequest(req) || !strings.EqualFold(req.Header.Get(httpstream.HeaderUpgrade), spdy.HeaderSpdy31) {
		http.Error(w, "the request does not ask for an upgrade to "+spdy.HeaderSpdy31, http.StatusBadRequest)
		return nil
	}
	if _, err := httpstream.Handshake(req, w, []string{protocol}); err != nil {
		return nil
	}
	w.Header().Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	w.Header().Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	w.WriteHeader(http.StatusSwitchingProtocols)
	below, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil // the connection is broken
	}
	return serveSPDY(framed{below, &frames{from: buffered.Reader}, ownOf(req), nil}, accept, opened)
}

// serveSPDY serves a client whose connection carries SPDY. It returns nil if the connection is
// broken.
func serveSPDY(below framed, accept func(c *spdyConn, stream httpstream.Stream) error, opened func(c *spdyConn, stream httpstream.Stream)) *spdyConn {
	c := &spdyConn{
		below:   below,
		accept:  accept,
		opened:  opened,
		streams: map[uint32]httpstream.Stream{},
	}
	var err error
	c.conn, err = spdystream.NewConnectionWithOptions(c.below, true,
		framing.WithMaxControlFramePayloadSize(maxControl), framing.WithMaxHeaderCount(maxFields), framing.WithMaxHeaderFieldSize(maxField))
	if err != nil {
		_ = below.Close()
		return nil
	}
	c.conn.SetIdleTimeout(idleTimeout)
	go func() {
		c.conn.Serve(c.take)
		if c.below.socket == nil { // a WebSocket reads on by itself
			c.below.own.drain()
		}
	}()
	return c
}

// framed is a connection whose client's frames are checked and split.
type framed struct {
	net.Conn
	frames *frames
	own    *conn
	socket *socket // through which the frames come; nil: through none
}

// Close closes the connection, unless it is parting: the library closes it as soon as it has
// written the last frame.
func (f framed) Close() error {
	switch {
	case f.socket != nil:
		f.socket.close()
		return nil
	case f.own.isParting():
		return nil
	}
	return f.Conn.Close()
}

// Read reads a part of a frame.
func (f framed) Read(b []byte) (int, error) { return f.frames.Read(b) }

// take opens a stream, or resets it.
func (c *spdyConn) take(stream *spdystream.Stream) {
	c.mu.Lock()
	err := errors.New("the connection is closed")
	if !c.closed {
		err = c.accept(c, stream)
	}
	if err == nil {
		c.streams[stream.Identifier()] = stream
	}
	c.mu.Unlock()
	// A write to a stream waits for ever if there was no reply.
	if err != nil || stream.SendReply(http.Header{}, false) != nil {
		_ = stream.Reset()
		return
	}
	c.opened(c, stream)
}

// forget resets streams that are not needed any more. Data written to them before they were closed
// reaches the client.
func (c *spdyConn) forget(streams ...httpstream.Stream) {
	c.mu.Lock()
	for _, s := range streams {
		delete(c.streams, s.Identifier())
	}
	c.mu.Unlock()
	for _, s := range streams {
		_ = s.Reset()
	}
}

// close ends all streams, and prevents new ones. Then the connection is parting. It may be called
// again.
func (c *spdyConn) close() {
	c.startParting()
	c.mu.Lock()
	c.closed = true
	streams := c.streams
	c.streams = nil
	c.mu.Unlock()
	for _, s := range streams {
		_ = s.Reset()
	}
	_ = c.conn.Close()
}

// startParting notes that the call of the connection has ended.
func (c *spdyConn) startParting() {
	if c.below.socket != nil {
		c.below.socket.startParting()
		return
	}
	c.below.own.startParting(c.below.Conn)
}
