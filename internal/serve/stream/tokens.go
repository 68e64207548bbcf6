// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/budget"
	"berth/internal/base/ops"
)

const (
	// urlLifetime is how long a URL is good for a request.
	urlLifetime = time.Minute
	// idleForward is how long nothing must have come or gone on a port-forward, before it makes
	// room for another.
	idleForward = time.Minute
	// roomTime is how long a port-forward waits for another to end, if its pod has its share or all
	// pods have what there is: a browser opens connections by the dozen, and closes each in a moment.
	roomTime = 10 * time.Second
)

// offer is the one request that a URL stands for, and then the stream of the client that made the
// request. It holds its place in a budget from the beginning to the end, so that there is room for
// the client that comes with the URL.
type offer struct {
	serve http.HandlerFunc
	of    *budget.Budget
	pod   string
	until time.Time    // of the URL
	busy  atomic.Int64 // when something came or went last, in nanoseconds since 1970
	// hangUp ends the stream once its client has come. It must not be called with the server's lock.
	hangUp func()
}

// touch notes that something came or went.
func (o *offer) touch() { o.busy.Store(time.Now().UnixNano()) }

// issue makes a URL at which serve answers one request, for something of a pod. The URL contains
// the secret of the server, and a token of 128 random bits. It returns ErrResourceExhausted if the
// pod has its share, or the budget is used up.
func (s *Server) issue(kind string, of *budget.Budget, pod string, serve func(o *offer) http.HandlerFunc) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.base == nil {
		return "", fmt.Errorf("the streaming server does not serve: %w: %w", s.mu.err, errdefs.ErrUnavailable)
	}
	now := time.Now()
	for path, o := range s.mu.offers {
		if now.After(o.until) {
			delete(s.mu.offers, path)
			o.of.Give(o.pod, 1)
		}
	}
	take := of.Take
	if of == s.service.forwards { // the caller waits for room
		take = of.Try
		for of.Room(pod) < 1 && s.hangUpIdleLocked(pod, now) {
		}
	}
	if err := take(pod, 1); err != nil {
		return "", err
	}
	at := s.mu.base.ResolveReference(&url.URL{Path: kind + "/" + rand.Text()})
	o := &offer{of: of, pod: pod, until: now.Add(urlLifetime)}
	o.touch()
	o.serve = serve(o)
	s.mu.offers[at.Path] = o
	return at.String(), nil
}

// issueWithin makes a URL for a port-forward of a pod as issue does, and waits for room.
func (s *Server) issueWithin(ctx context.Context, pod string, serve func(o *offer) http.HandlerFunc) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, roomTime)
	defer cancel()
	var op *ops.Op
	defer func() { op.End() }()
	for {
		s.mu.Lock()
		if s.mu.room == nil {
			s.mu.room = make(chan struct{})
		}
		room := s.mu.room
		s.mu.Unlock()
		at, err := s.issue("portforward", s.service.forwards, pod, serve)
		if !errdefs.IsResourceExhausted(err) {
			return at, err
		}
		if op == nil {
			_, op = ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "room for another port-forward", Then: "the call ends with the reason"})
		}
		select {
		case <-ctx.Done():
			s.service.forwards.Refuse()
			return "", err
		case <-room:
		// a URL that was not used expires, and a port-forward becomes idle
		case <-time.After(time.Second):
		}
	}
}

// hangUpIdleLocked makes room for a port-forward of a pod: it hangs up on the one that was idle for
// longest, of the pod itself if that has its share. It reports whether there was one.
func (s *Server) hangUpIdleLocked(pod string, now time.Time) bool {
	of := s.service.forwards
	limits := of.Usage().Limits
	full := of.Of(pod) >= limits.Pod
	var oldest *offer
	for o := range s.mu.streams {
		switch {
		case o.of != of || now.UnixNano()-o.busy.Load() < int64(idleForward):
		case full && o.pod != pod:
		case !full && o.pod != pod && of.Of(o.pod) <= limits.Sure: // that many are its own for sure
		case oldest == nil || o.busy.Load() < oldest.busy.Load():
			oldest = o
		}
	}
	if oldest == nil {
		return false
	}
	s.cfg.Logger.Warn("idle port-forward closed to make room for another", "pod", oldest.pod,
		"idle", time.Duration(now.UnixNano()-oldest.busy.Load()))
	s.dropLocked(oldest)
	go oldest.hangUp() // which takes the lock
	return true
}

// offered reports whether a request to a path would be served.
func (s *Server) offered(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.mu.offers[path]
	return o != nil && !time.Now().After(o.until)
}

// redeem takes the offer of a path. It returns nil if there is none, or if it has expired. A second
// request to the path gets nothing. The caller drops the offer when the client is gone.
func (s *Server) redeem(path string, own *conn) *offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.mu.offers[path]
	if o == nil {
		return nil
	}
	delete(s.mu.offers, path)
	if time.Now().After(o.until) {
		o.of.Give(o.pod, 1)
		return nil
	}
	o.hangUp = func() { _ = own.Close() }
	s.mu.streams[o] = true
	o.touch()
	return o
}

// drop gives back the place of a stream.
func (s *Server) drop(o *offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(o)
}

func (s *Server) dropLocked(o *offer) {
	if s.mu.streams[o] {
		delete(s.mu.streams, o)
		o.of.Give(o.pod, 1)
		s.silentLocked()
		if s.mu.room != nil && o.of == s.service.forwards {
			close(s.mu.room)
			s.mu.room = nil
		}
	}
}

// ServeHTTP answers a request to a URL that issue has made.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	own := ownOf(req)
	if own == nil {
		http.Error(w, "the connection is not known", http.StatusInternalServerError)
		return
	}
	// net/http does not close a connection that was upgraded. The place of the stream is given back
	// before.
	defer own.part()
	o := s.redeem(req.URL.Path, own)
	if o == nil {
		http.NotFound(w, req)
		return
	}
	own.redeemed.Store(true)
	defer s.drop(o)
	o.serve(w, req)
}
