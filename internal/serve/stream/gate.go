// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// maxLine is how long the first line of a request may be. A request with one of berth's URLs
	// has 100 bytes.
	maxLine = 512
	// maxHeaders is how long all headers of a request may be. A kubelet passes on its client's
	// headers, without the credentials.
	maxHeaders = 16 << 10
	// refusalTimeout is how long a client that is refused may take to read that.
	refusalTimeout = time.Second
)

// gates puts a gate before each connection.
type gates struct {
	net.Listener
	server *Server
}

// Accept waits for a client.
func (g gates) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gate{Conn: c, server: g.server}, nil
}

// gate lets a client in whose request begins with a URL that is good. Nothing is kept of other
// requests. It is above TLS, if there is TLS.
type gate struct {
	net.Conn
	server *Server

	// Only the reader uses these.
	open bool
	line []byte // the bytes of the request that are read and not passed on yet
}

// Read reads from the client, once its first line is known to be good.
func (g *gate) Read(b []byte) (int, error) {
	if !g.open {
		if err := g.check(); err != nil {
			return 0, err
		}
		g.open = true
	}
	if len(g.line) > 0 {
		n := copy(b, g.line)
		if g.line = g.line[n:]; len(g.line) == 0 {
			g.line = nil
		}
		return n, nil
	}
	return g.Conn.Read(b)
}

// CloseWrite ends the direction to the client, if the connection can do that.
func (g *gate) CloseWrite() error {
	if half, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// check reads the first line. A client whose URL is not good is answered, and hung up on.
func (g *gate) check() error {
	line := make([]byte, 0, maxLine)
	end := -1
	for end < 0 && len(line) < maxLine {
		n, err := g.Conn.Read(line[len(line):maxLine])
		line = line[:len(line)+n]
		end = bytes.IndexByte(line, '\n')
		if err != nil && end < 0 {
			return err
		}
	}
	if end >= 0 {
		words := strings.Fields(string(line[:end]))
		if len(words) == 3 {
			if path, _, _ := strings.Cut(words[1], "?"); g.server.offered(path) {
				g.line = line
				return nil
			}
		}
	}
	g.refuse()
	return io.EOF
}

// refuse answers that there is nothing at a URL, and waits a moment until the client has read that,
// because hanging up at once would reset the connection if the client has sent more.
func (g *gate) refuse() {
	_ = g.Conn.SetDeadline(time.Now().Add(refusalTimeout))
	const text = "404 page not found\n"
	resp := http.Response{
		StatusCode:    http.StatusNotFound,
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{"Content-Type": {"text/plain; charset=utf-8"}},
		Body:          io.NopCloser(strings.NewReader(text)),
		ContentLength: int64(len(text)),
		Close:         true,
	}
	if resp.Write(g.Conn) == nil && g.CloseWrite() == nil {
		_, _ = io.CopyBuffer(io.Discard, struct{ io.Reader }{g.Conn}, make([]byte, maxLine))
	}
}
