// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// minRate is how many bytes a second a peer has to send, on average over its time-out. The registry
// is asked for the rest of a blob that comes slower.
const minRate = 64 << 10

// The kinds of failures of a peer, for metrics.
const (
	KindUnreachable = "unreachable" // it cannot be asked, or has the wrong certificate
	KindStalled     = "stalled"     // no byte has come for the time-out
	KindSlow        = "slow"        // fewer than minRate
	KindCutOff      = "cut_off"     // it died, or hung up
	KindWrong       = "wrong"       // an answer that is none of a peer's, such as a redirect
	KindLied        = "lied"        // bytes that are not those of the digest
	KindName        = "name"        // a name of peers could not be resolved
)

// failure is a fault of a peer.
type failure struct {
	kind string
	err  error
}

// Error names the fault.
func (f failure) Error() string { return f.kind + ": " + f.err.Error() }

// Unwrap returns the cause.
func (f failure) Unwrap() error { return f.err }

// errBusy says that a peer sends as much as it may: it is not put aside.
var errBusy = errors.New("the peer is busy")

// errAbsent says that a peer does not have a blob.
var errAbsent = errors.New("the peer does not have it")

// storeError is an error of the store that takes the bytes, which is not a fault of the peer.
type storeError struct{ error }

// Unwrap returns the cause.
func (e storeError) Unwrap() error { return e.error }

// ownError is an error of this node before the peer was asked, such as that its own certificate
// cannot be read.
type ownError struct{ error }

// Unwrap returns the cause.
func (e ownError) Unwrap() error { return e.error }

// address returns where a peer has a blob.
func (b Blob) address(p netip.AddrPort) string {
	host, path, _ := strings.Cut(b.Repository, "/")
	kind := "blobs"
	if b.Manifest {
		kind = "manifests"
	}
	u := url.URL{
		Scheme:   "https",
		Host:     p.String(),
		Path:     "/v2/" + path + "/" + kind + "/" + b.Digest.String(),
		RawQuery: url.Values{"ns": {host}}.Encode(),
	}
	return u.String()
}

// judge translates an answer of a peer that does not have the wanted status.
func judge(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusNotFound:
		return errAbsent
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return errBusy
	}
	return failure{KindWrong, fmt.Errorf("it answers %s", resp.Status)}
}

// has asks a peer whether it has a blob: nil says that it does.
func (c *Client) has(ctx context.Context, p netip.AddrPort, b Blob) error {
	ctx, cancel := context.WithTimeout(ctx, c.askTimeout())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, b.address(p), nil)
	if err != nil {
		return failure{KindWrong, err}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return failure{KindUnreachable, err}
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return judge(resp)
	}
	if resp.ContentLength != b.Size { // a manifest can give any size: that is not the peer's fault
		return errAbsent
	}
	return nil
}

// transfer writes the bytes of a blob that a peer sends from an offset on, and returns their
// number. The bytes are not compared with the digest.
func (c *Client) transfer(ctx context.Context, p netip.AddrPort, b Blob, offset int64, to io.Writer) (got int64, err error) {
	stalled := failure{KindStalled, fmt.Errorf("no byte came for %s", c.cfg.Timeout)}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The timer runs while the peer is waited for, and not while its bytes are written.
	timer := time.AfterFunc(c.cfg.Timeout, func() { cancel(stalled) })
	defer timer.Stop()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), stalled) {
			err = stalled
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.address(p), nil)
	if err != nil {
		return 0, failure{KindWrong, err}
	}
	want := b.Size - offset
	status, part := http.StatusOK, ""
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		status, part = http.StatusPartialContent, fmt.Sprintf("bytes %d-%d/%d", offset, b.Size-1, b.Size)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, failure{KindUnreachable, err}
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode != status:
		return 0, judge(resp)
	case resp.ContentLength != want, resp.Header.Get("Content-Range") != part:
		return 0, failure{KindWrong, fmt.Errorf("it sends %d bytes (%q) instead of %d", resp.ContentLength, resp.Header.Get("Content-Range"), want)}
	}
	return c.read(resp.Body, want, to, timer)
}

// read copies a body of as many bytes as are wanted. timer ends the wait for it.
func (c *Client) read(body io.Reader, want int64, to io.Writer, timer *time.Timer) (got int64, err error) {
	buf := make([]byte, 128<<10)
	var waited time.Duration // since the last look at the rate
	var came int64           // in that time
	for got < want {
		begun := time.Now()
		timer.Reset(c.cfg.Timeout)
		n, err := body.Read(buf[:min(int64(len(buf)), want-got)])
		timer.Stop()
		waited += time.Since(begun)
		if n > 0 {
			came += int64(n)
			c.cfg.Received(n)
			if _, err := to.Write(buf[:n]); err != nil {
				return got, storeError{err}
			}
			got += int64(n)
		}
		if err != nil && got < want {
			return got, failure{KindCutOff, fmt.Errorf("after %d of %d bytes: %w", got, want, err)}
		}
		if waited >= c.cfg.Timeout && got < want {
			if float64(came) < minRate*c.cfg.Timeout.Seconds() {
				return got, failure{KindSlow, fmt.Errorf("%d bytes in %s", came, waited)}
			}
			waited, came = 0, 0
		}
	}
	return got, nil
}
