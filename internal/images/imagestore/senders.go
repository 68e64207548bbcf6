// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
)

// senders are the registries and mirrors of one pull: which of them has sent each blob, and which
// have sent a blob wrongly. Those count as if they did not have it, so that the next one is asked.
type senders struct {
	mu    sync.Mutex
	last  map[digest.Digest]string   // the one that was asked last, by its origin
	wrong map[digest.Digest][]string // those that have sent other bytes
	news  bool                       // one more, since the last call of learned
}

// watch has all requests to hosts pass through the senders.
func (s *senders) watch(hosts docker.RegistryHosts) docker.RegistryHosts {
	return func(host string) ([]docker.RegistryHost, error) {
		all, err := hosts(host)
		for n := range all {
			client := *all[n].Client
			client.Transport = sending{client.Transport, s}
			all[n].Client = &client
		}
		return all, err
	}
}

// liar notes that a blob did not have its digest.
func (s *senders) liar(dgst digest.Digest) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if from := s.last[dgst]; from != "" && !slices.Contains(s.wrong[dgst], from) {
		if s.wrong == nil {
			s.wrong = map[digest.Digest][]string{}
		}
		s.wrong[dgst], s.news = append(s.wrong[dgst], from), true
	}
}

// forgive forgets who has sent wrong bytes.
func (s *senders) forgive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong, s.news = nil, false
}

// learned reports whether another server was caught since the last call.
func (s *senders) learned() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.news
	s.news = false
	return news
}

// sending is a transport that notes who sends blobs.
type sending struct {
	http.RoundTripper
	to *senders
}

// RoundTrip carries out one request, unless it asks for a blob from a server that has sent that
// blob wrongly.
func (t sending) RoundTrip(r *http.Request) (*http.Response, error) {
	kind, name := path.Split(r.URL.Path)
	dgst := digest.Digest(name)
	if !strings.HasSuffix(kind, "/blobs/") && !strings.HasSuffix(kind, "/manifests/") || dgst.Validate() != nil {
		return t.RoundTripper.RoundTrip(r)
	}
	from := origin(r.URL)
	t.to.mu.Lock()
	wrong := slices.Contains(t.to.wrong[dgst], from)
	t.to.mu.Unlock()
	if wrong {
		return &http.Response{
			Status:     http.StatusText(http.StatusNotFound),
			StatusCode: http.StatusNotFound,
			Proto:      "HTTP/1.1",
			ProtoMajor: 1,
			ProtoMinor: 1,
			Header:     http.Header{},
			Body:       http.NoBody,
			Request:    r,
		}, nil
	}
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode < http.StatusBadRequest {
		t.to.mu.Lock()
		defer t.to.mu.Unlock()
		if t.to.last == nil {
			t.to.last = map[digest.Digest]string{}
		}
		t.to.last[dgst] = from
	}
	return resp, err
}
