// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// A peer's request names a repository and something in it, or is refused.
func FuzzRequest(f *testing.F) {
	f.Add("/v2/registry.example/a/manifests/latest", "")
	f.Add("/v2/a/blobs/sha256:00", "ns=registry.example")
	f.Add("/v2//blobs/", "ns=%zz")
	f.Fuzz(func(t *testing.T, path, query string) {
		q, ok := parse(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}})
		if ok && (q.repository == "" || !strings.HasSuffix(path, q.reference)) {
			t.Errorf("%q?%q asks for %+v", path, query, q)
		}
	})
}
