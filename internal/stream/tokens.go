// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// urlLifetime is how long a URL is good for a request.
	urlLifetime = time.Minute
	// maxURLs is how many URLs are good at a time.
	maxURLs = 1000
)

// offer is what a URL is good for.
type offer struct {
	serve http.HandlerFunc
	until time.Time
}

// issue makes a URL at which serve answers one request. The URL contains the secret of the server,
// and a token of 128 random bits.
func (s *Server) issue(kind string, serve http.HandlerFunc) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.base == nil {
		return "", fmt.Errorf("the streaming server does not serve: %w: %w", s.mu.err, errdefs.ErrUnavailable)
	}
	now := time.Now()
	for path, o := range s.mu.offers {
		if now.After(o.until) {
			delete(s.mu.offers, path)
		}
	}
	if len(s.mu.offers) >= maxURLs {
		return "", fmt.Errorf("%d URLs of streams wait for their clients already; try again in a minute: %w",
			maxURLs, errdefs.ErrResourceExhausted)
	}
	at := s.mu.base.ResolveReference(&url.URL{Path: kind + "/" + newID()})
	s.mu.offers[at.Path] = offer{serve, now.Add(urlLifetime)}
	return at.String(), nil
}

// redeem returns what the URL of a path is good for, and nil if it is good for nothing. It is good
// for nothing afterwards.
func (s *Server) redeem(path string) http.HandlerFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.mu.offers[path]
	delete(s.mu.offers, path)
	if time.Now().After(o.until) {
		return nil
	}
	return o.serve
}

// ServeHTTP answers a request to a URL that issue has made.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if own, ok := req.Context().Value(connKey{}).(*conn); ok {
		// net/http does not close a connection that was upgraded, and the libraries leave some open:
		// that of a client that has not opened its streams in time, for one.
		defer own.closeUpgraded()
	}
	serve := s.redeem(req.URL.Path)
	if serve == nil {
		http.NotFound(w, req)
		return
	}
	serve(w, req)
}
