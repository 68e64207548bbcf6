// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/images/peer"
	"berth/test/peertest"
)

const repository = "registry.example/team/app"

// generous is a time-out that no peer of a test reaches which answers.
const generous = time.Minute

// contents is what a peer has, by repository.
type contents map[string]map[digest.Digest][]byte

// manifest is the media type of what begins with a brace.
const manifest = "application/vnd.oci.image.manifest.v1+json"

// Open implements peer.Contents.
func (c contents) Open(_ context.Context, repository string, d digest.Digest) (peer.Content, error) {
	b, ok := c[repository][d]
	if !ok {
		return peer.Content{}, errdefs.ErrNotFound
	}
	content := peer.Content{ReaderAt: bytes.NewReader(b), Closer: io.NopCloser(nil), Size: int64(len(b))}
	if bytes.HasPrefix(b, []byte("{")) {
		content.MediaType = manifest
	}
	return content, nil
}

// blob is some bytes, and what a peer is asked for.
func blob(size int) ([]byte, peer.Blob) {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b, peer.Blob{Repository: repository, Digest: digest.FromBytes(b), Size: int64(size)}
}

// with is what a peer has that has one blob.
func with(b []byte) contents { return contents{repository: {digest.FromBytes(b): b}} }

// world is an authority, and what peers and clients of a test have in common.
type world struct {
	t  *testing.T
	ca *peertest.Authority

	mu      sync.Mutex
	answers []string
	kinds   []string
	bytes   int64 // received
}

func newWorld(t *testing.T) *world {
	return &world{t: t, ca: peertest.NewAuthority(t, t.TempDir())}
}

// serves runs a server and returns its address.
func (w *world) serves(c peer.Contents, change ...func(*peer.ServerConfig)) string {
	w.t.Helper()
	cfg := peer.ServerConfig{
		Address:  "127.0.0.1:0",
		Files:    w.ca.Node(fmt.Sprintf("server-%d", rand.Uint64()), peertest.Name),
		MaxBlobs: 16,
		Contents: c,
		Logger:   slog.New(slog.DiscardHandler),
		Answered: func(answer string, _ int64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.answers = append(w.answers, answer)
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	s := peer.NewServer(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	for s.Addr() == nil {
		select {
		case err := <-ended:
			ended <- nil
			w.t.Fatal(err)
		default:
			time.Sleep(time.Millisecond)
		}
	}
	return s.Addr().String()
}

// fake runs a peer that answers as the test says, with a certificate of a peer.
func (w *world) fake(h http.HandlerFunc) string {
	w.t.Helper()
	files := w.ca.Node(fmt.Sprintf("fake-%d", rand.Uint64()), peertest.Name)
	return w.fakeWith(files, h)
}

func (w *world) fakeWith(files peer.Files, h http.HandlerFunc) string {
	w.t.Helper()
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		w.t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	w.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.Listener.Addr().String()
}

// client makes a client of some peers.
func (w *world) client(timeout time.Duration, peers ...string) *peer.Client {
	return w.clientWith(func(c *peer.ClientConfig) { c.Timeout, c.Peers = timeout, peers })
}

func (w *world) clientWith(change func(*peer.ClientConfig)) *peer.Client {
	w.t.Helper()
	cfg := peer.ClientConfig{
		Files:   w.ca.Node(fmt.Sprintf("client-%d", rand.Uint64()), peertest.Name),
		Timeout: generous,
		Ask:     8,
		Logger:  slog.New(slog.DiscardHandler),
		Received: func(n int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.bytes += int64(n)
		},
		Failed: func(kind string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.kinds = append(w.kinds, kind)
		},
	}
	change(&cfg)
	return peer.NewClient(cfg)
}

// failures are the kinds of failures so far.
func (w *world) failures() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.kinds)
}

// raw is what an HTTP client of a peer is made of, with any certificate or none.
func raw(t *testing.T, ca string, certs ...tls.Certificate) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	tr := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:      pool,
		ServerName:   peertest.Name,
		Certificates: certs,
		MinVersion:   tls.VersionTLS12,
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// nobody is an address on which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

// sends answers like a peer that has a blob of that size, with body for GET.
func sends(size int, body func(w http.ResponseWriter, r *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		if r.Method == http.MethodGet {
			body(w, r)
		}
	}
}
