// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

const (
	// maxConns is how many connections there may be. One more is closed at once.
	maxConns = 1024
	// maxConnsOfOne is how many of these one address may have.
	maxConnsOfOne = 32
	// headerTimeout is how long a handshake and the header of a request may take.
	headerTimeout = 5 * time.Second
	// idleTimeout is how long a connection is kept for one more request.
	idleTimeout = time.Minute
	// maxHeader bounds the header of a request, in bytes.
	maxHeader = 16 << 10
	// slowest is how many bytes a second a peer has to take of a blob, on average, once the first
	// ten seconds are over.
	slowest = 128 << 10
)

// Contents has the blobs of a server.
type Contents interface {
	// Open opens a blob, or a manifest, of which an image of a repository here consists. The name
	// of the repository begins with the host of its registry. ErrNotFound says that there is none,
	// and any other error that it is not known now.
	Open(ctx context.Context, repository string, d digest.Digest) (Content, error)
}

// Content is an open blob, which its opener closes.
type Content struct {
	io.ReaderAt
	io.Closer
	Size int64
	// MediaType is that of a manifest or an index; "" for another blob.
	MediaType string
}

// The answers of a server, for metrics.
const (
	AnswerServed = "served" // with the bytes, or with the news that they are here
	AnswerAbsent = "absent"
	AnswerBusy   = "busy"
	AnswerFailed = "failed" // the store could not be asked
	AnswerBad    = "bad"    // nothing that a peer has a reason to ask for
)

// ServerConfig has the address, the blobs and the bounds of a server.
type ServerConfig struct {
	Address string // HOST:PORT
	Files   Files
	// MaxBlobs is how many blobs are sent at the same time. One peer gets a quarter of them at
	// most.
	MaxBlobs int
	Contents Contents
	Logger   *slog.Logger
	// Answered is called with each answer and the bytes that were sent of a blob. It may be nil.
	Answered func(answer string, bytes int64)
}

// Server serves the blobs of this node's images to its peers. Its methods may be called from any
// goroutine.
type Server struct {
	cfg ServerConfig

	mu    sync.Mutex
	addr  net.Addr       // nil: it does not listen
	conns map[string]int // by address of the client
	total int
	sends map[string]int // blobs that are being sent, by address of the client
	sent  int
}

// NewServer makes a server, which serves when it runs.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Answered == nil {
		cfg.Answered = func(string, int64) {}
	}
	return &Server{cfg: cfg, conns: map[string]int{}, sends: map[string]int{}}
}

// Addr returns the address on which it listens, or nil.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Run serves until ctx ends, and returns nil then. Otherwise the error says why it cannot serve; it
// may be run again.
func (s *Server) Run(ctx context.Context) error {
	if err := s.cfg.Files.Check(); err != nil {
		return err
	}
	lis, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for peers on %s: %w", s.cfg.Address, err)
	}
	s.listens(lis.Addr())
	defer s.listens(nil)
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout, // which bounds the handshake as well
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// One blob is one connection, which the bounds count.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ErrorLog:     slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err = server.Serve(tls.NewListener(&listener{lis, s}, s.cfg.Files.server()))
	_ = server.Close()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve peers: %w", err)
}

func (s *Server) listens(at net.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = at
}

// listener bounds the connections.
type listener struct {
	net.Listener
	of *Server
}

// Accept returns the next connection for which there is room.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := hostOf(c.RemoteAddr().String())
		l.of.mu.Lock()
		room := l.of.total < maxConns && l.of.conns[host] < maxConnsOfOne
		if room {
			l.of.total++
			l.of.conns[host]++
		}
		l.of.mu.Unlock()
		if room {
			return &conn{Conn: c, over: sync.OnceFunc(func() { l.of.closed(host) })}, nil
		}
		_ = c.Close()
	}
}

func (s *Server) closed(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	less(s.conns, host)
}

// conn is a connection that counts until it is closed.
type conn struct {
	net.Conn
	over func()
}

// Close ends the connection.
func (c *conn) Close() error {
	c.over()
	return c.Conn.Close()
}

// less takes one of what a client has, and forgets a client that has nothing.
func less(of map[string]int, host string) {
	if of[host]--; of[host] <= 0 {
		delete(of, host)
	}
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// take begins to send a blob to a client, if there is room. The caller calls done.
func (s *Server) take(host string) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent >= s.cfg.MaxBlobs || s.sends[host] >= max(1, s.cfg.MaxBlobs/4) {
		return nil, false
	}
	s.sent++
	s.sends[host]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sent--
		less(s.sends, host)
	}, true
}

// request is a parsed path of /v2/.
type request struct {
	repository string // with the host of its registry
	manifest   bool
	reference  string
}

// parse reads a request. containerd names the registry that a mirror stands in for with the
// parameter ns; without it the name of the repository begins with the registry's host.
func parse(r *http.Request) (request, bool) {
	path, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	if !ok {
		return request{}, false
	}
	for _, kind := range []string{"/manifests/", "/blobs/"} {
		at := strings.LastIndex(path, kind)
		if at <= 0 {
			continue
		}
		q := request{
			repository: path[:at],
			manifest:   kind == "/manifests/",
			reference:  path[at+len(kind):],
		}
		if ns := r.URL.Query().Get("ns"); ns != "" {
			q.repository = ns + "/" + q.repository
		}
		return q, true
	}
	return request{}, false
}

// ServeHTTP answers a request of a peer.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, bytes := s.serve(w, r)
	s.cfg.Answered(answer, bytes)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) (answer string, bytes int64) {
	// An answer without a blob does not take minutes; one with a blob gets its own deadline.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(headerTimeout))
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return refuse(w, AnswerBad, http.StatusMethodNotAllowed, "UNSUPPORTED", "peers are read-only")
	}
	if r.URL.Path == "/v2/" || r.URL.Path == "/v2" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
		return AnswerServed, 0
	}
	q, ok := parse(r)
	if !ok {
		return refuse(w, AnswerBad, http.StatusNotFound, "UNSUPPORTED", "peers have manifests and blobs alone")
	}
	unknown := "BLOB_UNKNOWN"
	if q.manifest {
		unknown = "MANIFEST_UNKNOWN"
	}
	d, err := digest.Parse(q.reference)
	if err != nil { // the target of a tag may have changed at the registry
		return refuse(w, AnswerBad, http.StatusNotFound, unknown, "peers have digests alone; ask the registry what a tag stands for")
	}
	c, err := s.cfg.Contents.Open(r.Context(), q.repository, d)
	if err == nil && q.manifest && c.MediaType == "" {
		_ = c.Close()
		err = errdefs.ErrNotFound
	}
	switch {
	case errdefs.IsNotFound(err):
		return refuse(w, AnswerAbsent, http.StatusNotFound, unknown, "no image of this repository has it here")
	case err != nil:
		s.cfg.Logger.Debug("a peer cannot be answered", "digest", d, "err", err)
		return refuse(w, AnswerFailed, http.StatusServiceUnavailable, "UNAVAILABLE", "the images of this node cannot be read now")
	}
	defer c.Close()
	if r.Method == http.MethodGet {
		done, ok := s.take(hostOf(r.RemoteAddr))
		if !ok {
			return refuse(w, AnswerBusy, http.StatusServiceUnavailable, "TOOMANYREQUESTS", "this node sends as much as it may")
		}
		defer done()
	}
	return AnswerServed, send(w, r, q, d, c)
}

// send answers with a blob, or with the part of it that was asked for.
func send(w http.ResponseWriter, r *http.Request, q request, d digest.Digest, c Content) int64 {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	if q.manifest {
		h.Set("Content-Type", c.MediaType)
	}
	h.Set("Docker-Content-Digest", d.String())
	h.Set("ETag", `"`+d.String()+`"`)
	if strings.Contains(r.Header.Get("Range"), ",") { // several parts are more than the whole
		r.Header.Del("Range")
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10*time.Second + time.Duration(c.Size/slowest)*time.Second))
	counted := &counter{ResponseWriter: w}
	http.ServeContent(counted, r, "", time.Time{}, io.NewSectionReader(c, 0, c.Size))
	return counted.n
}

// counter counts the bytes of a body.
type counter struct {
	http.ResponseWriter
	n int64
}

// Write sends the next bytes.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

// refuse answers with an error in the form of the OCI distribution specification.
func refuse(w http.ResponseWriter, answer string, status int, code, message string) (string, int64) {
	type one struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string][]one{"errors": {{code, message}}})
	return answer, 0
}
