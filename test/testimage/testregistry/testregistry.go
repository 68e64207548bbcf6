// SPDX-License-Identifier: Apache-2.0

// Package testregistry serves images to tests, on the loopback interface unless Address changes
// that: plain or TLS, open or behind a password, by Basic authentication or with a token server,
// like the large registries. It records every request with its credentials, so that a test can
// check which server received which. It ends with the test.
package testregistry

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"berth/test/testimage"
)

// Registry is a running registry.
type Registry struct {
	// Addr is host:port.
	Addr string
	// CA is the certificate, in PEM, that a TLS registry is trusted by; else nil.
	CA []byte

	t     testing.TB
	store http.Handler // without the handlers in front of it
	cfg   config
	token string

	mu struct {
		sync.Mutex
		requests []Request
	}
}

// Request is one that the registry received.
type Request struct {
	Method, Path string
	// Authorization is the header as sent, "" if none was.
	Authorization string
}

type config struct {
	tls            bool
	scheme         string // of the Authorization header: "", Basic or Bearer
	user, password string
	front          []func(http.Handler) http.Handler
	address        string
}

// Option changes the registry of Start.
type Option func(*config)

// TLS makes the registry speak HTTPS, with a certificate of its own (see CA).
func TLS() Option { return func(c *config) { c.tls = true } }

// BasicAuth makes the registry ask for a name and a password on every request.
func BasicAuth(user, password string) Option {
	return func(c *config) { c.scheme, c.user, c.password = "Basic", user, password }
}

// TokenAuth makes it ask for a token, which its token server, at /token of the
// same address, gives for a name and a password.
func TokenAuth(user, password string) Option {
	return func(c *config) { c.scheme, c.user, c.password = "Bearer", user, password }
}

// Address makes the registry listen on another address than the loopback, at a free port.
func Address(host string) Option { return func(c *config) { c.address = host } }

// Front puts a handler before everything else, to make the registry slow, broken
// or hostile. The last one given comes first.
func Front(wrap func(http.Handler) http.Handler) Option {
	return func(c *config) { c.front = append(c.front, wrap) }
}

// Start starts a registry that runs until the test ends.
func Start(t testing.TB, options ...Option) *Registry {
	t.Helper()
	r := &Registry{
		t:     t,
		token: rand.Text(),
		store: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
	}
	for _, o := range options {
		o(&r.cfg)
	}
	handler := http.Handler(http.HandlerFunc(r.serve))
	for _, wrap := range r.cfg.front {
		handler = wrap(handler)
	}
	server := httptest.NewUnstartedServer(r.record(handler))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused certificates are part of a test
	if r.cfg.address != "" {
		lis, err := net.Listen("tcp", net.JoinHostPort(r.cfg.address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		_ = server.Listener.Close()
		server.Listener = lis
	}
	if r.cfg.tls {
		server.StartTLS()
		r.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	} else {
		server.Start()
	}
	r.Addr = server.Listener.Addr().String()
	t.Cleanup(server.Close)
	return r
}

// Push stores an image, past all authentication, as repository:tag, and returns
// the reference to pull it by: Addr/repository:tag.
func (r *Registry) Push(repository string, img v1.Image) (ref string) {
	r.t.Helper()
	return r.push(repository, func(tag name.Tag, how remote.Option) error { return remote.Write(tag, img, how) })
}

// PushIndex stores the images of several platforms, as Push does.
func (r *Registry) PushIndex(repository string, index v1.ImageIndex) (ref string) {
	r.t.Helper()
	return r.push(repository, func(tag name.Tag, how remote.Option) error { return remote.WriteIndex(tag, index, how) })
}

// PushProfile stores a seccomp profile, as Push does, and returns its reference with a digest.
func (r *Registry) PushProfile(repository, body string) (ref string) {
	r.t.Helper()
	const kind = "application/vnd.cncf.seccomp-profile.config.v1+json"
	a, err := testimage.Artifact(testimage.ArtifactConfig{Type: kind, ConfigType: kind}, testimage.Blob{MediaType: "application/json", Body: []byte(body)})
	if err != nil {
		r.t.Fatal(err)
	}
	digest, err := a.Digest()
	if err != nil {
		r.t.Fatal(err)
	}
	tagged := r.Push(repository, a)
	return tagged[:strings.LastIndex(tagged, ":")] + "@" + digest.String()
}

func (r *Registry) push(repository string, write func(name.Tag, remote.Option) error) (ref string) {
	r.t.Helper()
	ref = r.Addr + "/" + repository
	tag, err := name.NewTag(ref, name.StrictValidation, name.Insecure)
	if err == nil {
		err = write(tag, remote.WithTransport(direct{r.store}))
	}
	if err != nil {
		r.t.Fatalf("push %s: %v", ref, err)
	}
	return ref
}

// Requests returns the requests so far, oldest first.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.requests)
}

func (r *Registry) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.mu.requests = append(r.mu.requests, Request{req.Method, req.URL.Path, req.Header.Get("Authorization")})
		r.mu.Unlock()
		next.ServeHTTP(w, req)
	})
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	user, password, _ := req.BasicAuth()
	known := user == r.cfg.user && password == r.cfg.password
	switch r.cfg.scheme {
	case "Basic":
		if !known {
			w.Header().Set("WWW-Authenticate", `Basic realm="berth test"`)
			refuse(w)
			return
		}
	case "Bearer":
		if req.URL.Path == "/token" {
			if !known {
				refuse(w)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"token": r.token, "expires_in": 300})
			return
		}
		if req.Header.Get("Authorization") != "Bearer "+r.token {
			scheme := "http"
			if r.cfg.tls {
				scheme = "https"
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+scheme+`://`+r.Addr+`/token",service="berth test",scope="`+scope(req.URL.Path)+`"`)
			refuse(w)
			return
		}
	}
	r.store.ServeHTTP(w, req)
}

func refuse(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
}

// scope names the scope that a token for a path must have.
func scope(path string) string {
	path = strings.TrimPrefix(path, "/v2/")
	for _, part := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		if i := strings.LastIndex(path, part); i > 0 {
			return "repository:" + path[:i] + ":pull"
		}
	}
	return ""
}

// direct calls a handler where a network would be.
type direct struct{ http.Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil {
		req.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	w.Body = new(bytes.Buffer)
	d.ServeHTTP(w, req)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}
