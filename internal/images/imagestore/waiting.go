// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"berth/internal/base/ops"
)

const (
	// longestWait bounds the wait for a registry that names a time to come back. The pull fails
	// if it names more, and the kubelet asks for it again after minutes.
	longestWait = time.Minute
	// mostWaits bounds how often it may say so to one request.
	mostWaits = 5
)

// waiting is a transport that comes back if a registry asks for it: with 429 or 503 and
// Retry-After. containerd's fetcher asks five times at once, by which the registry counts five more
// requests.
type waiting struct{ http.RoundTripper }

// RoundTrip carries out one request.
func (t waiting) RoundTrip(r *http.Request) (*http.Response, error) {
	for n := 0; ; n++ {
		resp, err := t.RoundTripper.RoundTrip(r)
		if err != nil || n == mostWaits || r.Body != nil {
			return resp, err
		}
		wait, asked := retryAfter(resp, time.Now())
		if !asked || wait > longestWait {
			return resp, err
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // else the connection is closed
		resp.Body.Close()
		busy := "the registry " + r.URL.Host + ", which is busy, to be asked again"
		_, op := ops.Begin(r.Context(), ops.Work{Kind: ops.Wait, What: busy, Until: time.Now().Add(wait)})
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
		timer.Stop()
		op.End()
		if r.Context().Err() != nil {
			return nil, context.Cause(r.Context())
		}
	}
}

// retryAfter returns after which time a registry wants to be asked again, and whether it does.
func retryAfter(resp *http.Response, now time.Time) (wait time.Duration, asked bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	text := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	return max(0, at.Sub(now)), err == nil
}
