// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/base/connection"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// A large layer comes in pieces that are fetched beside each other, where the registry sends parts
// as it is asked to, and by one connection where it does not. PROPERTIES 66.
func TestALargeLayerComesInPieces(t *testing.T) {
	i, _ := parallelStore(t)
	img := layersOf(t, []testimage.File{dir("a"), {Name: "a/model", Mode: 0o644, Body: noise(5 * pieceBytes)}})
	digest, blob := blobOfLayer(t, img, 0)
	var mu sync.Mutex
	var asked []string // ranges
	var now, most int
	var serve http.HandlerFunc
	whole := func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
	}
	ref := testregistry.Start(t, serving(func() string { return digest }, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Header.Get("Range"))
		now++
		most = max(most, now)
		mu.Unlock()
		defer func() { mu.Lock(); now--; mu.Unlock() }()
		serve(w, r)
	})).Push("team/app:1", img)
	beginsAt := func(r *http.Request, from int) bool {
		return strings.HasPrefix(r.Header.Get("Range"), fmt.Sprintf("bytes=%d-", from))
	}
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		check func() bool
	}{
		"parts": {func(w http.ResponseWriter, r *http.Request) {
			for beginsAt(r, pieceBytes) { // the second piece waits for the third
				mu.Lock()
				enough := most > 1
				mu.Unlock()
				if enough || r.Context().Err() != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			whole(w, r)
		}, func() bool { return most > 1 && most <= perLayer && len(asked) == 6 }},
		"no parts": {func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			whole(w, r)
		}, func() bool { return len(asked) == 2 && asked[1] == "" }},
		"another part": {func(w http.ResponseWriter, r *http.Request) {
			if beginsAt(r, 2*pieceBytes) && !strings.HasSuffix(r.Header.Get("Range"), "-") {
				r.Header.Set("Range", fmt.Sprintf("bytes=0-%d", pieceBytes-1))
			}
			whole(w, r)
		}, func() bool { return strings.HasSuffix(asked[len(asked)-1], "-") }},
		"wrong bytes of a part": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				b := bytes.Clone(blob)
				b[3*pieceBytes] ^= 1
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
				return
			}
			whole(w, r)
		}, func() bool { return asked[len(asked)-1] == "" }},
		"a connection that is cut": {func(w http.ResponseWriter, r *http.Request) {
			if beginsAt(r, 3*pieceBytes) {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", 3*pieceBytes, 4*pieceBytes-1, len(blob)))
				w.Header().Set("Content-Length", fmt.Sprint(pieceBytes))
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(blob[3*pieceBytes : 3*pieceBytes+1000])
				return
			}
			whole(w, r)
		}, func() bool { return len(asked) == 7 }},
		"one connection": {func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			busy := now > 1
			mu.Unlock()
			if part := r.Header.Get("Range"); busy && part != "" && !strings.HasSuffix(part, "-") {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			whole(w, r)
		}, func() bool { return true }},
	} {
		t.Run(name, func(t *testing.T) {
			asked, most, serve = nil, 0, c.serve
			st := pulled(t, i, ref)
			if mu.Lock(); !c.check() {
				t.Errorf("asked for %q, %d at a time", asked, most)
			}
			mu.Unlock()
			for _, n := range st.NamesGiven() {
				try(t, i.Delete(t.Context(), n))
			}
			try(t, i.collect(connection.Namespaced(t.Context())))
		})
	}
	if !i.registries.shares.of(strings.Split(ref, "/")[0]).TryAcquire(perRegistry) {
		t.Error("pieces are not given back")
	}
}
