// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"testing"
)

// A client's bytes never make frames panic. What the SPDY library gets of them has the same data, in
// frames that are no longer than what it may keep in memory.
func FuzzFrames(f *testing.F) {
	f.Add(bytes.Join([][]byte{controlFrame(synStream, 1, 18), dataFrame(1, 0, 5), []byte("hello"), controlFrame(ping, 1, 4)}, nil))
	f.Add(append(dataFrame(1, 1, 10000), make([]byte, 10000)...))
	f.Add(controlFrame(synStream, 2, 3))
	f.Fuzz(func(t *testing.T, client []byte) {
		from := &frames{from: bytes.NewReader(client)}
		var out []byte
		for b := make([]byte, 1000); ; {
			n, err := from.Read(b)
			out = append(out, b[:n]...)
			if err != nil {
				break
			}
		}
		var in, passed []byte
		for b := client; len(b) >= 8; { // what the client has sent, up to the first frame that is refused
			length := int(binary.BigEndian.Uint32(b[4:]) & 0xffffff)
			if b[0]&0x80 == 0 {
				in = append(in, b[8:min(len(b), 8+length)]...)
			}
			b = b[min(len(b), 8+length):]
		}
		for b := out; len(b) >= 8; {
			length := int(binary.BigEndian.Uint32(b[4:]) & 0xffffff)
			if b[0]&0x80 == 0 {
				if length > spdyPiece {
					t.Fatalf("a data frame of %d bytes is passed on", length)
				}
				passed = append(passed, b[8:min(len(b), 8+length)]...)
			} else if kind := binary.BigEndian.Uint16(b[2:]); length > maxControl {
				t.Fatalf("a control frame of type %d with %d bytes is passed on", kind, length)
			}
			b = b[min(len(b), 8+length):]
		}
		if !bytes.HasPrefix(in, passed) {
			t.Fatalf("%d bytes of data are passed on that the client has not sent", len(passed))
		}
	})
}

// What a client sends over a WebSocket never makes the server panic, nor keeps it busy once the client
// has gone, and a channel that only berth writes to gets nothing.
func FuzzSocket(f *testing.F) {
	message := func(kind byte, payload ...byte) []byte { // masked with zeros
		return append([]byte{0x80 | kind, 0x80 | byte(len(payload)), 0, 0, 0, 0}, payload...)
	}
	f.Add(message(2, 0, 'h', 'i'), false)
	f.Add(append(message(9), message(2, 4, '{', '}')...), false)
	f.Add(message(1, append([]byte{'0'}, base64.StdEncoding.EncodeToString([]byte("hi"))...)...), true)
	f.Fuzz(func(t *testing.T, client []byte, text bool) {
		protocol := ""
		if text {
			protocol = base64Protocol
		}
		ours, theirs := net.Pipe()
		request := "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
		if text {
			request += "Sec-WebSocket-Protocol: " + protocol + "\r\n"
		}
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader([]byte(request + "\r\n"))))
		if err != nil {
			t.Fatal(err)
		}
		own := newConn(tcpPair(t), NewServer(ServerConfig{}, nil))
		req = req.WithContext(context.WithValue(t.Context(), connKey{}, own))
		gone := make(chan struct{})
		go func() { // the client takes what berth sends, until the connection is closed
			defer close(gone)
			_, _ = io.Copy(io.Discard, theirs)
		}()
		s := upgradeSocket(&hijacked{conn: ours}, req, []string{protocol}, []use{{read: true}, {write: true}})
		if s == nil {
			t.Fatal("the connection is not upgraded")
		}
		written := make(chan int64)
		go func() {
			n, _ := io.Copy(io.Discard, s.channels[1].r)
			written <- n
		}()
		go func() {
			_, _ = theirs.Write(client)
			_ = theirs.Close()
		}()
		if n, _ := io.Copy(io.Discard, s.channels[0].r); n > int64(len(client)) {
			t.Errorf("%d bytes came of %d", n, len(client))
		}
		if n := <-written; n != 0 {
			t.Errorf("%d bytes came on a channel that is not read", n)
		}
		s.close()
		_ = own.Close()
		_ = ours.Close()
		<-gone
	})
}

// hijacked is the answer to a request on a connection of a test.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

func (h *hijacked) Header() http.Header { return http.Header{} }

// Hijack returns the connection.
func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// The sizes of a terminal end with the first text that is not one, and nothing that follows is kept.
func FuzzSizes(f *testing.F) {
	f.Add([]byte(`{"Width":80,"Height":24}{"Width":1,"Height":2}`))
	f.Add([]byte(`{"Width":80,"Height":`))
	f.Fuzz(func(t *testing.T, client []byte) {
		r := bytes.NewReader(client)
		n := 0
		for range readSizes(context.Background(), r) {
			n++
		}
		if n > len(client) {
			t.Errorf("%d sizes in %d bytes", n, len(client))
		}
	})
}
