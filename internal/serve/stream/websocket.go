// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// socketPiece is how much of a message is in memory at a time, however long the message is.
const socketPiece = 16 << 10

// use is the direction of a WebSocket channel. Data on a channel that is not read is dropped, and
// so is data written to one that is not written.
type use struct{ read, write bool }

// socket is a connection that was upgraded to a WebSocket. Each message belongs to the channel
// whose number is its first byte; one that carries SPDY has a single channel, and no numbers. A
// message is passed on while it comes, and the client waits where the reader of its channel does.
// That is why berth does not serve WebSockets with cri-streaming, which keeps each message whole.
type socket struct {
	conn     *websocket.Conn
	own      *conn
	protocol string // that the client and the server agreed on; "" is none
	channels []*channel
	pings    chan string // the last ping that was not answered yet

	writing sync.Mutex // a WebSocket takes one message at a time
}

// channel is one channel of a socket.
type channel struct {
	socket *socket
	number byte
	use    use
	r      *io.PipeReader
	w      *io.PipeWriter
}

// upgradeSocket upgrades the connection of a request to a WebSocket, with the first protocol of the
// client's that is one of protocols. If it cannot, it has answered the client, and returns nil. The
// caller closes the socket.
func upgradeSocket(w http.ResponseWriter, req *http.Request, protocols []string, uses []use) *socket {
	var chosen http.Header
	if asked := websocket.Subprotocols(req); len(asked) > 0 {
		i := slices.IndexFunc(asked, func(p string) bool { return slices.Contains(protocols, p) })
		if i < 0 {
			http.Error(w, "none of the WebSocket's protocols is supported", http.StatusForbidden)
			return nil
		}
		chosen = http.Header{"Sec-Websocket-Protocol": {asked[i]}}
	}
	upgrader := websocket.Upgrader{
		HandshakeTimeout: headerTimeout,
		CheckOrigin:      func(*http.Request) bool { return true }, // it has a URL of berth's
	}
	conn, err := upgrader.Upgrade(w, req, chosen)
	if err != nil {
		return nil
	}
	s := &socket{
		conn:     conn,
		own:      ownOf(req),
		protocol: conn.Subprotocol(),
		pings:    make(chan string, 1),
	}
	conn.SetPingHandler(s.notePing)
	for i, u := range uses {
		c := &channel{socket: s, number: byte(i), use: u}
		c.r, c.w = io.Pipe()
		s.channels = append(s.channels, c)
	}
	go s.answerPings()
	go func() {
		s.receive()
		s.own.drain()
	}()
	return s
}

// notePing notes that a ping is to be answered, and forgets the one before.
func (s *socket) notePing(ping string) error {
	select {
	case <-s.pings:
	default:
	}
	s.pings <- ping
	return nil
}

// answerPings answers pings until there are no more. An answer waits for the client as output does:
// the library's own gives the client one second, and after that nothing can be written any more, so
// that a ping of a client that reads slowly would end its stream.
func (s *socket) answerPings() {
	for ping := range s.pings {
		_ = s.conn.WriteControl(websocket.PongMessage, []byte(ping), time.Now().Add(idleTimeout))
	}
}

// text reports whether messages are text, in base64.
func (s *socket) text() bool {
	return s.protocol == base64Protocol || s.protocol == v4Base64Protocol
}

// tunnels reports whether the messages carry the client's bytes of a SPDY connection.
func (s *socket) tunnels() bool { return s.protocol == tunnelProtocol }

// receive passes on messages until the connection ends.
func (s *socket) receive() {
	defer close(s.pings)
	defer s.end()
	buf := make([]byte, socketPiece)
	for {
		s.extend()
		_, message, err := s.conn.NextReader()
		if err != nil {
			return
		}
		if s.tunnels() {
			s.pass(message, s.channels[0].w, buf)
			continue
		}
		var number [1]byte
		switch _, err := io.ReadFull(message, number[:]); {
		case errors.Is(err, io.EOF):
			continue // clients send empty messages to see whether the connection is alive
		case err != nil:
			return
		}
		if s.text() {
			number[0] -= '0'
			message = base64.NewDecoder(base64.StdEncoding, message)
		}
		if s.protocol == v5Protocol && number[0] == remotecommand.StreamClose {
			s.closeChannel(message)
			continue
		}
		if int(number[0]) >= len(s.channels) || !s.channels[number[0]].use.read {
			continue // the next call of NextReader drops the rest
		}
		s.pass(message, s.channels[number[0]].w, buf)
	}
}

// closeChannel ends the input of the channel that a message names.
func (s *socket) closeChannel(message io.Reader) {
	var number [1]byte
	if _, err := io.ReadFull(message, number[:]); err == nil && int(number[0]) < len(s.channels) {
		_ = s.channels[number[0]].Close()
	}
}

// pass passes on one message. Data after an error in it is dropped.
func (s *socket) pass(message io.Reader, to io.Writer, buf []byte) {
	for {
		n, err := message.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
			s.extend()
		}
		if err != nil {
			return
		}
	}
}

// extend begins the time anew in which something must come or go.
func (s *socket) extend() { _ = s.conn.SetReadDeadline(time.Now().Add(idleTimeout)) }

// end ends the waits for the client.
func (s *socket) end() {
	for _, c := range s.channels {
		_ = c.w.Close()
	}
}

// startParting notes that the call of the connection has ended.
func (s *socket) startParting() { s.own.startParting(s.conn.NetConn()) }

// close prevents further output. Then the connection is parting. It may be called again.
func (s *socket) close() {
	s.startParting()
	s.end()
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = s.conn.WriteControl(websocket.CloseMessage, bye, time.Now().Add(idleTimeout))
}

// Read reads the client's data on the channel.
func (c *channel) Read(b []byte) (int, error) {
	if !c.use.read {
		return 0, io.EOF
	}
	return c.r.Read(b)
}

// outgoing are buffers for messages to clients.
var outgoing = sync.Pool{New: func() any { return new([]byte) }}

// Write sends a message, in one frame: some clients take each frame for a message.
func (c *channel) Write(b []byte) (int, error) {
	if !c.use.write {
		return len(b), nil
	}
	message := outgoing.Get().(*[]byte)
	defer outgoing.Put(message)
	kind := websocket.BinaryMessage
	switch {
	case c.socket.tunnels():
		*message = append((*message)[:0], b...)
	case c.socket.text():
		kind = websocket.TextMessage
		*message = base64.StdEncoding.AppendEncode(append((*message)[:0], '0'+c.number), b)
	default:
		*message = append(append((*message)[:0], c.number), b...)
	}
	c.socket.writing.Lock()
	defer c.socket.writing.Unlock()
	c.socket.extend()
	_ = c.socket.conn.SetWriteDeadline(time.Now().Add(idleTimeout))
	if err := c.socket.conn.WriteMessage(kind, *message); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close ends the input of the channel.
func (c *channel) Close() error { return c.w.Close() }
