// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/ops"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// resolver returns what a pull resolves and fetches with.
func resolver(t *testing.T, registry string, creds image.Credentials) remotes.Resolver {
	i := open(nil, Config{})
	return newResolver(i.registries.hosts(t.Context(), registry, creds, func(int) {}))
}

// listener is a server that notes the credentials that it is sent, in headers, bodies and queries.
type listener struct {
	*httptest.Server
	mu       sync.Mutex
	asked    int
	received []string
}

func listen(t *testing.T, answer http.HandlerFunc) *listener {
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		l.mu.Lock()
		l.asked++
		if a := r.Header.Get("Authorization"); a != "" {
			l.received = append(l.received, a)
		}
		for k, v := range r.Form {
			if strings.Contains(k, "token") || strings.Contains(k, "password") {
				l.received = append(l.received, v...)
			}
		}
		l.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *listener) sent() (asked int, received []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked, append([]string(nil), l.received...)
}

// A bearer token for a registry was posted to the token server that the registry names: whoever
// answers for the registry had it sent anywhere.
func TestARegistryTokenGoesToTheRegistryAlone(t *testing.T) {
	img, err := testimage.Image(v1Config())
	if err != nil {
		t.Fatal(err)
	}
	realm := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "other", "access_token": "other"})
	})
	demand := ""
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != demand {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm.URL+`/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	ref := reg.Push("team/app:1", img)
	demand = "Bearer mine"
	if _, _, err := resolver(t, reg.Addr, image.Credentials{RegistryToken: "mine"}).Resolve(t.Context(), ref); err != nil {
		t.Errorf("the token is not used: %v", err)
	}
	demand = "Bearer another"
	if _, _, err := resolver(t, reg.Addr, image.Credentials{RegistryToken: "mine"}).Resolve(t.Context(), ref); err == nil {
		t.Error("resolved with a token that the registry does not take")
	}
	if asked, received := realm.sent(); asked != 0 || len(received) != 0 {
		t.Errorf("the realm was asked %d times and sent %q", asked, received)
	}
}

// CVE-2020-15157: a manifest names URLs of its layers, on any host, which then asks for
// credentials. That host, which this node may reach and the author of the image may not, is not
// even asked.
func TestALayerIsNotFetchedFromHostsThatAManifestNames(t *testing.T) {
	body := []byte("a layer")
	for _, scheme := range []string{`Basic realm="x"`, `Bearer realm="REALM/token",service="x"`} {
		evil := listen(t, nil)
		evil.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := r.Header.Get("Authorization")
			evil.mu.Lock()
			evil.asked++
			if a != "" {
				evil.received = append(evil.received, a)
			}
			evil.mu.Unlock()
			w.Header().Set("WWW-Authenticate", strings.ReplaceAll(scheme, "REALM", evil.URL))
			w.WriteHeader(http.StatusUnauthorized)
		})
		for _, creds := range []image.Credentials{{Username: "me", Password: "secret"}, {IdentityToken: "secret"}, {RegistryToken: "secret"}} {
			reg := testregistry.Start(t)
			fetcher, err := resolver(t, reg.Addr, creds).Fetcher(t.Context(), reg.Addr+"/team/app:1")
			if err != nil {
				t.Fatal(err)
			}
			r, err := fetcher.Fetch(t.Context(), ocispec.Descriptor{
				MediaType: ocispec.MediaTypeImageLayer,
				Digest:    digest.FromBytes(body),
				Size:      int64(len(body)),
				URLs:      []string{evil.URL + "/layer"},
			})
			if err == nil {
				_, err = r.Read(make([]byte, 1))
				_ = r.Close()
			}
			if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "urls that its manifest names") {
				t.Errorf("a layer that the registry does not have: %v", err)
			}
		}
		if asked, received := evil.sent(); asked != 0 {
			t.Errorf("the other host was asked %d times and sent %q", asked, received)
		}
	}
}

// A registry that sends those who pull on to another host does not send their credentials along. To
// net/http two ports of an address are one host, so that whoever listens on another port got them,
// and the headers of hosts.toml went everywhere.
func TestCredentialsAreNotSentAlongWithARedirect(t *testing.T) {
	img, err := testimage.Image(v1Config())
	try(t, err)
	for name, as := range map[string]string{"another name": "localhost", "another port": "127.0.0.1"} {
		t.Run(name, func(t *testing.T) {
			elsewhere := listen(t, func(w http.ResponseWriter, r *http.Request) {
				if len(r.Header["X-Registry-Token"])+len(r.Header["Cookie"]) > 0 {
					t.Errorf("the other host was sent %v", r.Header)
				}
				w.WriteHeader(http.StatusForbidden)
			})
			url := strings.Replace(elsewhere.URL, "127.0.0.1", as, 1)
			off := true
			reg := testregistry.Start(t, testregistry.BasicAuth("me", "secret"), testregistry.Front(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !off && r.Header.Get("Authorization") != "" {
						http.Redirect(w, r, url+r.URL.Path+"?X-Amz-Signature=abc", http.StatusTemporaryRedirect)
						return
					}
					next.ServeHTTP(w, r)
				})
			}))
			ref := reg.Push("team/app:1", img)
			off = false
			dir := t.TempDir()
			try(t, os.Mkdir(filepath.Join(dir, reg.Addr), 0o700))
			try(t, os.WriteFile(filepath.Join(dir, reg.Addr, "hosts.toml"), fmt.Appendf(nil, "[host.\"http://%s\".header]\nx-registry-token = \"secret\"\n", reg.Addr), 0o600))
			i := open(nil, Config{RegistryDir: dir})
			r := newResolver(i.registries.hosts(t.Context(), reg.Addr, image.Credentials{Username: "me", Password: "secret"}, func(int) {}))
			if _, _, err := r.Resolve(t.Context(), ref); err == nil {
				t.Error("resolved elsewhere")
			}
			if asked, received := elsewhere.sent(); asked == 0 || len(received) != 0 {
				t.Errorf("the other host was asked %d times and sent %q", asked, received)
			}
		})
	}
}

// A token server gets the password in the body of a request, and net/http sends a body on to
// wherever a server says.
func TestATokenServerSendsThePasswordNowhere(t *testing.T) {
	img, err := testimage.Image(v1Config())
	try(t, err)
	elsewhere := listen(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	realm := listen(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"/token", http.StatusTemporaryRedirect)
	})
	off := true
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if off {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		})
	}))
	ref := reg.Push("team/app:1", img)
	off = false
	for _, creds := range []image.Credentials{{Username: "me", Password: "secret"}, {IdentityToken: "secret"}} {
		if _, _, err := resolver(t, reg.Addr, creds).Resolve(t.Context(), ref); err == nil {
			t.Error("resolved without a token")
		}
	}
	if asked, received := realm.sent(); asked == 0 || len(received) == 0 {
		t.Errorf("the token server was asked %d times and sent %q", asked, received)
	}
	if asked, received := elsewhere.sent(); len(received) != 0 {
		t.Errorf("the other host was asked %d times and sent %q", asked, received)
	}
}

// A registry that hung up after each byte was asked for the rest again and again, and each of its
// answers counted as if the pull had got on.
func TestAnswersWithTheRestOfABlobAreNotProgress(t *testing.T) {
	body := []byte("a layer")
	reg := listen(t, func(w http.ResponseWriter, r *http.Request) {
		from := 0
		if rest := r.Header.Get("Range"); rest != "" {
			_, _ = fmt.Sscanf(rest, "bytes=%d-", &from)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body)))
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)-from))
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		_, _ = w.Write(body[from : from+1]) // and the server hangs up
	})
	host := strings.TrimPrefix(reg.URL, "http://")
	var bytes, answers int
	i := open(nil, Config{})
	fetcher, err := docker.NewResolver(docker.ResolverOptions{Hosts: i.registries.hosts(t.Context(), host, image.Credentials{}, func(n int) {
		if bytes += n; n == 0 {
			answers++
		}
	})}).Fetcher(t.Context(), host+"/team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := fetcher.Fetch(t.Context(), ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayer,
		Digest:    digest.FromBytes(body),
		Size:      int64(len(body)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if asked, _ := reg.sent(); err != nil || string(got) != string(body) || asked < len(body) {
		t.Fatalf("%q %v, asked %d times", got, err, asked)
	}
	if bytes != len(body) || answers != 1 {
		t.Errorf("%d bytes and %d answers were reported, want %d and 1", bytes, answers, len(body))
	}
}

// PROPERTIES 65: a registry that does not answer is named while it is waited for, and then the blob that
// comes slowly.
func TestARegistryThatHangsIsNamed(t *testing.T) {
	list := &ops.List{}
	said := func() string {
		all, _ := list.Snapshot()
		return strings.Join(ops.Sentences(all, ops.Object{}, time.Now()), " ")
	}
	asked, answering := "", make(chan struct{})
	l := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		asked = said()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-answering
	})
	ctx, op := list.Begin(t.Context(), ops.Work{Kind: ops.Pull, Of: ops.Object{Image: "app:v1"}})
	defer op.End()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.URL+"/v2/app/blobs/sha256:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := counting{progress: func(int) {}}.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	coming := said()
	close(answering)
	_ = resp.Body.Close()
	if want := "app:v1 is being pulled: the registry " + r.URL.Host + " has not answered"; !strings.Contains(asked, want) {
		t.Errorf("while it does not answer: %s", asked)
	}
	if want := "it waits for the rest of sha256:1 from " + r.URL.Host; !strings.Contains(coming, want) {
		t.Errorf("while the blob comes: %s", coming)
	}
	if end := said(); strings.Contains(end, r.URL.Host) {
		t.Errorf("after the blob: %s", end)
	}
}

// Another port of the host got the bearer token of the registry, and stores like S3 answer 400 to a
// request that is authorized twice. PROPERTIES 66.
func TestABearerTokenStaysWithItsServer(t *testing.T) {
	img, err := testimage.Image(v1Config())
	try(t, err)
	manifest, err := img.RawManifest()
	try(t, err)
	store := listen(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = w.Write(manifest)
	})
	reg := testregistry.Start(t, testregistry.TokenAuth("me", "secret"), testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") && r.Header.Get("Authorization") != "" {
				http.Redirect(w, r, store.URL+"/bucket?X-Amz-Signature=abc", http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	}))
	fetcher, err := resolver(t, reg.Addr, image.Credentials{Username: "me", Password: "secret"}).Fetcher(t.Context(), reg.Push("team/app:1", img))
	try(t, err)
	r, err := fetcher.Fetch(t.Context(), ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayer,
		Digest:    digest.FromBytes(manifest),
		Size:      int64(len(manifest)),
	})
	try(t, err)
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != string(manifest) {
		t.Errorf("%q, %v", b, err)
	}
	if asked, received := store.sent(); asked != 1 || len(received) > 0 {
		t.Errorf("the store was asked %d times and sent %q", asked, received)
	}
}

// Only the same scheme, name and port are the same server.
func TestCredentialsGoToTheSameServerAlone(t *testing.T) {
	const from = "https://registry.example/v2/"
	for to, same := range map[string]bool{
		"https://registry.example/other":     true,
		"https://registry.example:443/other": true,
		"http://registry.example/other":      false,
		"https://registry.example:5000/":     false,
		"https://cdn.registry.example/":      false,
		"https://example/":                   false,
	} {
		first, err := http.NewRequest(http.MethodGet, from, nil)
		try(t, err)
		next, err := http.NewRequest(http.MethodGet, to, nil)
		try(t, err)
		next.Header.Set("Authorization", "Bearer secret")
		next.Header.Set("Range", "bytes=1-")
		try(t, redirect(next, []*http.Request{first}))
		if got := next.Header.Get("Authorization") != ""; got != same || next.Header.Get("Range") == "" {
			t.Errorf("%s: %v", to, next.Header)
		}
	}
}
