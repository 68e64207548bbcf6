// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/opencontainers/go-digest"

	"berth/internal/images/peer"
	"berth/test/peertest"
)

func certificate(t *testing.T, f peer.Files) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// PROPERTIES 41: what a peer serves is what the OCI distribution specification says of manifests and blobs, by digest.
func TestAPeerIsAReadOnlyRegistryOfDigests(t *testing.T) {
	w := newWorld(t)
	b, want := blob(1000)
	doc := []byte(`{"schemaVersion":2}`)
	m := digest.FromBytes(doc)
	files := w.ca.Node("client", peertest.Name)
	base := "https://" + w.serves(contents{repository: {want.Digest: b, m: doc}})
	c := raw(t, files.CA, certificate(t, files))
	const ns = "?ns=registry.example"
	for _, x := range []struct {
		method, path, ranges string
		status               int
		body                 []byte
	}{
		{"GET", "/v2/", "", 200, []byte("{}")},
		{"HEAD", "/v2/", "", 200, nil},
		{"GET", "/v2/team/app/blobs/" + want.Digest.String() + ns, "", 200, b},
		{"GET", "/v2/registry.example/team/app/blobs/" + want.Digest.String(), "", 200, b},
		{"HEAD", "/v2/team/app/blobs/" + want.Digest.String() + ns, "", 200, nil},
		{"GET", "/v2/team/app/blobs/" + want.Digest.String() + ns, "bytes=10-19", 206, b[10:20]},
		{"GET", "/v2/team/app/blobs/" + want.Digest.String() + ns, "bytes=990-", 206, b[990:]},
		{"GET", "/v2/team/app/blobs/" + want.Digest.String() + ns, "bytes=1000-", 416, nil},
		{"GET", "/v2/team/app/blobs/" + want.Digest.String() + ns, "bytes=0-1,5-6", 200, b},
		{"GET", "/v2/team/app/manifests/" + m.String() + ns, "", 200, doc},
		{"HEAD", "/v2/team/app/manifests/" + m.String() + ns, "", 200, nil},
		// A blob that is no manifest is none, a tag may be stale, and another repository has nothing.
		{"GET", "/v2/team/app/manifests/" + want.Digest.String() + ns, "", 404, nil},
		{"GET", "/v2/team/app/manifests/latest" + ns, "", 404, nil},
		{"GET", "/v2/team/app/tags/list" + ns, "", 404, nil},
		{"GET", "/v2/team/app/blobs/" + want.Digest.String(), "", 404, nil},
		{"GET", "/v2/team/other/blobs/" + want.Digest.String() + ns, "", 404, nil},
		{"GET", "/v2/team/app/blobs/" + want.Digest.String() + "?ns=evil.example", "", 404, nil},
		{"GET", "/v2/team/app/blobs/" + digest.FromString("x").String() + ns, "", 404, nil},
		{"GET", "/v2/team/app/blobs/sha256:../../../etc/passwd" + ns, "", 404, nil},
		{"GET", "/metrics", "", 404, nil},
		{"PUT", "/v2/team/app/manifests/latest", "", 405, nil},
		{"POST", "/v2/team/app/blobs/uploads/", "", 405, nil},
		{"DELETE", "/v2/team/app/manifests/" + m.String(), "", 405, nil},
		{"PATCH", "/v2/", "", 405, nil},
	} {
		req, err := http.NewRequestWithContext(t.Context(), x.method, base+x.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x.ranges != "" {
			req.Header.Set("Range", x.ranges)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", x.method, x.path, err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != x.status || x.body != nil && !bytes.Equal(got, x.body) {
			t.Errorf("%s %s: %s %q %v", x.method, x.path, resp.Status, got, err)
		}
		if x.status == 200 && x.method == "HEAD" && len(x.path) > 5 {
			if h := resp.Header; h.Get("Docker-Content-Digest") == "" || h.Get("Content-Length") == "" {
				t.Errorf("%s: %v", x.path, h)
			}
		}
	}
}

// PROPERTIES 41: nobody without the certificate of a peer gets an answer: not a pod, not a client of another authority,
// not one that the same authority knows under another name, and nobody with an old TLS.
func TestOnlyPeersAreServed(t *testing.T) {
	w := newWorld(t)
	b, want := blob(10)
	at := w.serves(with(b))
	mine := w.ca.Node("client", peertest.Name)
	ask := func(c *http.Client) error {
		resp, err := c.Get("https://" + at + "/v2/team/app/blobs/" + want.Digest.String() + "?ns=registry.example")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := ask(raw(t, mine.CA, certificate(t, mine))); err != nil {
		t.Fatal(err)
	}
	strange := peertest.NewAuthority(t, t.TempDir()).Node("client", peertest.Name)
	old := raw(t, mine.CA, certificate(t, mine))
	old.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS12
	for name, c := range map[string]*http.Client{
		"no certificate":    raw(t, mine.CA),
		"another authority": raw(t, mine.CA, certificate(t, strange)),
		"another name":      raw(t, mine.CA, certificate(t, w.ca.Node("kubelet", "system:node:a"))),
		"TLS 1.2":           old,
		"plain HTTP":        {Transport: http.DefaultTransport},
	} {
		if err := ask(c); err == nil {
			t.Errorf("%s: it was answered", name)
		}
	}
}

// slowContents are blobs whose bytes come when the test says.
type slowContents struct{ release chan struct{} }

// Open implements peer.Contents.
func (s slowContents) Open(context.Context, string, digest.Digest) (peer.Content, error) {
	return peer.Content{ReaderAt: s, Closer: io.NopCloser(nil), Size: 10}, nil
}

// ReadAt implements io.ReaderAt.
func (s slowContents) ReadAt(p []byte, _ int64) (int, error) {
	<-s.release
	return len(p), nil
}

// PROPERTIES 41: a node sends so many blobs at the same time and no more, and one peer gets a part of that. What is
// refused is refused at once.
func TestWhatIsSentAtTheSameTimeIsBounded(t *testing.T) {
	w := newWorld(t)
	s := slowContents{make(chan struct{})}
	at := w.serves(s, func(c *peer.ServerConfig) { c.MaxBlobs = 8 })
	files := w.ca.Node("client", peertest.Name)
	c := raw(t, files.CA, certificate(t, files))
	get := func() string {
		resp, err := c.Get("https://" + at + "/v2/r/x/blobs/" + digest.FromString("x").String())
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return strconv.Itoa(resp.StatusCode) + errorOf(err)
	}
	answers := make(chan string, 10)
	for range 5 {
		go func() { answers <- get() }()
	}
	for range 3 { // of eight, one peer gets two
		if got := <-answers; got != "503" {
			t.Errorf("one more is answered %s", got)
		}
	}
	close(s.release)
	for range 2 {
		if got := <-answers; got != "200" {
			t.Errorf("one within the bound is answered %s", got)
		}
	}
	if got := get(); got != "200" {
		t.Errorf("once there is room: %s", got)
	}
}

func errorOf(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

// A store that cannot be asked is not one that has nothing.
func TestAStoreThatCannotBeAskedIsNotAbsence(t *testing.T) {
	w := newWorld(t)
	at := w.serves(broken{})
	files := w.ca.Node("client", peertest.Name)
	resp, err := raw(t, files.CA, certificate(t, files)).Get("https://" + at + "/v2/r/x/blobs/" + digest.FromString("x").String())
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Error(resp.Status)
	}
}

type broken struct{}

// Open implements peer.Contents.
func (broken) Open(context.Context, string, digest.Digest) (peer.Content, error) {
	return peer.Content{}, errors.New("containerd is away")
}
