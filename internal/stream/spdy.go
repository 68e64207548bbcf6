// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// spdyConn is a connection that was upgraded to SPDY, and the streams that its client has opened.
//
// The library calls take in a goroutine that reads frames. If take waited for somebody who has
// gone, or if a stream that nobody reads were not reset in the end, that goroutine would stay for
// ever, also after the connection is closed. So take never waits, and close resets every stream.
// That is why berth does not serve SPDY with cri-streaming, which does neither.
type spdyConn struct {
	conn  httpstream.Connection
	ready chan struct{} // closed when conn is there; the first stream may come earlier
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
	if _, err := httpstream.Handshake(req, w, []string{protocol}); err != nil {
		return nil
	}
	c := &spdyConn{
		ready:   make(chan struct{}),
		accept:  accept,
		opened:  opened,
		streams: map[uint32]httpstream.Stream{},
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req, c.take)
	if conn == nil {
		return nil
	}
	conn.SetIdleTimeout(idleTimeout)
	c.conn = conn
	close(c.ready)
	return c
}

// take opens a stream. After an error the library resets the stream.
func (c *spdyConn) take(stream httpstream.Stream, _ <-chan struct{}) error {
	c.mu.Lock()
	err := errors.New("the connection is closed")
	if !c.closed {
		err = c.accept(c, stream)
	}
	if err == nil {
		c.streams[stream.Identifier()] = stream
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	// A write to a stream waits for ever if there was no reply. The library replies after take, too
	// late to notice that it could not.
	if s, ok := stream.(interface {
		SendReply(headers http.Header, end bool) error
	}); ok {
		if err := s.SendReply(http.Header{}, false); err != nil {
			return fmt.Errorf("reply to stream %d: %w", stream.Identifier(), err)
		}
	}
	c.opened(c, stream)
	return nil
}

// forget resets streams that are not needed any more. What was written to them before they were
// closed reaches the client.
func (c *spdyConn) forget(streams ...httpstream.Stream) {
	c.mu.Lock()
	for _, s := range streams {
		delete(c.streams, s.Identifier())
	}
	c.mu.Unlock()
	<-c.ready
	c.conn.RemoveStreams(streams...)
	for _, s := range streams {
		_ = s.Reset()
	}
}

// close ends all streams and the connection.
func (c *spdyConn) close() {
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
