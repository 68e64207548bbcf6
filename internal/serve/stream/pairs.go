// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
)

// maxPairs is how many connections a client may be opening at a time, of which it has opened one
// stream.
const maxPairs = 256

// forwardCall is a port-forward that a client may ask for with its URL.
type forwardCall struct {
	ports    []int32       // of a WebSocket; over SPDY each connection names its own
	patience time.Duration // see defaultPatience
	run      func(ctx context.Context, port int32, stream io.ReadWriteCloser) error
}

// serve forwards connections until the client is gone.
func (f forwardCall) serve(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	tunnelled := slices.Contains(websocket.Subprotocols(req), tunnelProtocol)
	if websocket.IsWebSocketUpgrade(req) && !tunnelled {
		f.overWebSocket(ctx, w, req)
		return
	}
	take := upgrade
	if tunnelled {
		take = upgradeTunnel
	}
	p := &pairs{patience: f.patience, half: map[string]*pair{}}
	conn := take(w, req, portforward.ProtocolV1Name, p.accept, func(c *spdyConn, s httpstream.Stream) {
		if whole := p.add(s); whole != nil {
			go f.forward(ctx, c, whole)
		}
	})
	if conn == nil {
		return
	}
	defer conn.close()
	select {
	case <-conn.conn.CloseChan():
	case <-ctx.Done():
	}
}

// forward forwards one connection.
func (f forwardCall) forward(ctx context.Context, c *spdyConn, p *pair) {
	if err := f.run(ctx, p.port, p.data); err != nil {
		_, _ = fmt.Fprintf(p.problem, "error forwarding port %d: %v", p.port, err)
	}
	_ = p.data.Close()
	_ = p.problem.Close()
	c.forget(p.data, p.problem)
}

// overWebSocket forwards a connection for each port, of which the client begins with a channel for
// the data and one for an error. Both begin with the number of the port.
func (f forwardCall) overWebSocket(ctx context.Context, w http.ResponseWriter, req *http.Request) {
	uses := make([]use, 0, 2*len(f.ports))
	for range f.ports {
		uses = append(uses, use{read: true, write: true}, use{write: true})
	}
	s := upgradeSocket(w, req, []string{v4BinaryProtocol, v4Base64Protocol}, uses)
	if s == nil {
		return
	}
	defer s.close()
	var forwards sync.WaitGroup
	for i, port := range f.ports {
		data, problem := s.channels[2*i], s.channels[2*i+1]
		number := binary.LittleEndian.AppendUint16(nil, uint16(port))
		_, _ = data.Write(number)
		_, _ = problem.Write(number)
		forwards.Go(func() {
			if err := f.run(ctx, port, data); err != nil {
				_, _ = fmt.Fprintf(problem, "error forwarding port %d: %v", port, err)
			}
			_ = data.Close()
		})
	}
	forwards.Wait()
}

// pair is the two streams of a connection: its data, and its error.
type pair struct {
	port    int32
	kinds   map[string]bool // the streams that were accepted
	data    httpstream.Stream
	problem httpstream.Stream
	timeout *time.Timer
}

// pairs are the connections of a client of which not both streams are open yet.
type pairs struct {
	patience time.Duration

	mu   sync.Mutex
	half map[string]*pair // by the ID that the client has given to the connection
}

// accept decides whether a stream is opened.
func (p *pairs) accept(c *spdyConn, stream httpstream.Stream) error {
	h := stream.Headers()
	kind, request := h.Get(portforward.StreamType), h.Get(portforward.PortForwardRequestIDHeader)
	port, err := strconv.ParseUint(h.Get(portforward.PortHeader), 10, 16)
	switch {
	case err != nil || port == 0:
		return fmt.Errorf("there is no port %q", h.Get(portforward.PortHeader))
	case kind != portforward.StreamTypeData && kind != portforward.StreamTypeError:
		return fmt.Errorf("a stream %q is not expected", kind)
	case request == "":
		return errors.New("the stream belongs to no connection")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.half[request]
	switch {
	case one == nil && len(p.half) >= maxPairs:
		return fmt.Errorf("%d connections wait for their second stream already", maxPairs)
	case one == nil:
		one = &pair{kinds: map[string]bool{}}
		one.timeout = time.AfterFunc(p.patience, func() { c.forget(p.expire(request, one)...) })
		p.half[request] = one
	case one.kinds[kind]:
		return fmt.Errorf("connection %s has a stream %q already", request, kind)
	}
	one.kinds[kind] = true
	if kind == portforward.StreamTypeData {
		one.port = int32(port)
	}
	return nil
}

// add adds a stream that was opened. It returns the connection once that has both streams.
func (p *pairs) add(stream httpstream.Stream) *pair {
	h := stream.Headers()
	request := h.Get(portforward.PortForwardRequestIDHeader)
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.half[request]
	if one == nil {
		return nil // it has expired meanwhile; the stream ends with the connection
	}
	if h.Get(portforward.StreamType) == portforward.StreamTypeData {
		one.data = stream
	} else {
		one.problem = stream
	}
	if one.data == nil || one.problem == nil {
		return nil
	}
	one.timeout.Stop()
	delete(p.half, request)
	return one
}

// expire gives up a connection whose second stream was not opened in time, and returns the first.
func (p *pairs) expire(request string, one *pair) []httpstream.Stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.half[request] != one {
		return nil
	}
	delete(p.half, request)
	if one.data != nil {
		return []httpstream.Stream{one.data}
	}
	if one.problem != nil {
		return []httpstream.Stream{one.problem}
	}
	return nil
}
