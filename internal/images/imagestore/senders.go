// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"net/http"
	"net/url"
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
	// pieces are the blobs of which parts were sent. false: they were not those of the blob.
	pieces  map[digest.Digest]bool
	parts   bool // a part was sent
	noParts bool // something else was sent for a part
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
	if s.pieces[dgst] { // the whole may be right
		s.pieces[dgst], s.news = false, true
		return
	}
	if from := s.last[dgst]; from != "" && !slices.Contains(s.wrong[dgst], from) {
		if s.wrong == nil {
			s.wrong = map[digest.Digest][]string{}
		}
		s.wrong[dgst], s.news = append(s.wrong[dgst], from), true
	}
}

// inPieces reports whether a blob may be fetched in pieces.
func (s *senders) inPieces(dgst digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	right, tried := s.pieces[dgst]
	return !s.noParts && (right || !tried)
}

// sendsParts reports whether a part of a blob was sent already.
func (s *senders) sendsParts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts && !s.noParts
}

// sent notes an answer to a request for a blob, and compares it with the part that was asked for.
// If one server sends no parts, none is asked for one in this pull any more: the next one of
// hosts.toml would have to send everything.
func (s *senders) sent(dgst digest.Digest, from string, p *part, resp *http.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last, s.pieces = map[digest.Digest]string{}, map[digest.Digest]bool{}
	}
	if dgst != "" {
		s.last[dgst] = from
	}
	if p == nil || resp.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	if err := p.answered(resp); err != nil {
		s.noParts = true
		return err
	}
	s.parts, s.pieces[p.of] = true, true
	return nil
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
	dgst := blobIn(r.URL)
	from := origin(r.URL)
	t.to.mu.Lock()
	wrong, noParts := slices.Contains(t.to.wrong[dgst], from), t.to.noParts
	t.to.mu.Unlock()
	r, p := ask(r)
	switch {
	case p != nil && noParts:
		return nil, errNoParts
	case wrong:
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
	if err != nil || resp.StatusCode >= http.StatusBadRequest {
		return resp, err
	}
	if err := t.to.sent(dgst, from, p, resp); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// blobIn returns the digest that a request to a registry asks for, or "".
func blobIn(u *url.URL) digest.Digest {
	kind, name := path.Split(u.Path)
	dgst := digest.Digest(name)
	if !strings.HasSuffix(kind, "/blobs/") && !strings.HasSuffix(kind, "/manifests/") || dgst.Validate() != nil {
		return ""
	}
	return dgst
}
