// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// breaking serves one blob, and counts its bytes. While it is broken it sends the beginning of
// other bytes of that length, at once, and nothing afterwards.
type breaking struct {
	body   []byte
	served atomic.Int64
	broken atomic.Pointer[[]byte]
}

func (b *breaking) front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, digest.FromBytes(b.body).String()) {
			next.ServeHTTP(w, r)
			return
		}
		if sent := b.broken.Load(); sent != nil {
			if b.served.Load() > 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(b.body)))
			n, _ := w.Write(*sent)
			b.served.Add(int64(n))
			if n < len(b.body) {
				panic(http.ErrAbortHandler)
			}
			return
		}
		http.ServeContent(counted{w, &b.served}, r, "", time.Time{}, bytes.NewReader(b.body))
	})
}

// breaks makes the first pull from i fail after what is sent of the blob, and returns the
// reference.
func (b *breaking) breaks(t *testing.T, i *Store, sent []byte) (ref string) {
	t.Helper()
	b.broken.Store(&sent)
	ref = testregistry.Start(t, testregistry.Front(b.front)).Push("team/large:1",
		artifactOf(t, testimage.ArtifactConfig{}, testimage.Blob{Title: "l", Body: b.body}))
	if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err == nil {
		t.Fatal("pulled from a registry that is broken")
	}
	b.broken.Store(nil)
	b.served.Store(0)
	return ref
}

func large(size int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), size/16) }

// next makes the store of the berth after one that was killed.
func next(t *testing.T, i *Store) *Store {
	t.Helper()
	n, err := New(i.client, i.cfg)
	try(t, err)
	return n
}

// What a pull had fetched when berth was killed was collected, and the next pull began a blob of
// many GiB again.
func TestAPullGoesOnAfterAKill(t *testing.T) {
	const size, cut = 4 << 20, 1 << 20
	b := &breaking{body: large(size)}
	i := store(t)
	ref := b.breaks(t, i, b.body[:cut])
	i = next(t, i)
	ctx := connection.Namespaced(t.Context())
	for range 2 { // berth is connected once more
		try(t, i.Sweep(ctx))
		collect(t, i)
	}
	_, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	try(t, err)
	if n := b.served.Load(); n == 0 || n > size-cut/2 {
		t.Errorf("the second pull was served %d bytes of %d, of which the first had %d", n, size, cut)
	}
	left, err := i.client.LeasesService().List(ctx)
	if err != nil || len(left) != 0 {
		t.Errorf("%+v %v", left, err)
	}
}

// PROPERTIES 6: a pull that ended before the first sweep did not see what an earlier berth had left
// of the same name, and the sweep kept it for the next pull, which had been.
func TestAPullThatEndsBeforeTheFirstSweepLeavesNothingOfTheOneBefore(t *testing.T) {
	b := &breaking{body: large(1 << 20)}
	i := store(t)
	ref := b.breaks(t, i, b.body[:1<<19])
	i = next(t, i)
	ctx := connection.Namespaced(t.Context())
	_, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
	try(t, err)
	try(t, i.Sweep(ctx))
	left, err := i.client.LeasesService().List(ctx)
	if err != nil || len(left) != 0 {
		t.Errorf("%+v %v", left, err)
	}
}

// What is kept after a kill for a pull that does not come goes after a while.
func TestWhatIsKeptAfterAKillGoes(t *testing.T) {
	b := &breaking{body: large(1 << 20)}
	i := store(t)
	b.breaks(t, i, b.body[:1<<19])
	i = next(t, i)
	ctx := connection.Namespaced(t.Context())
	try(t, i.Sweep(ctx))
	n := 0
	i.byKey.Range(func(k, v any) bool {
		n++
		h := v.(heldLease)
		h.until = time.Now().Add(-time.Second)
		i.byKey.Store(k, h)
		return true
	})
	try(t, i.Sweep(ctx))
	left, err := i.client.LeasesService().List(ctx)
	if err != nil || len(left) != 0 || n != 1 {
		t.Errorf("%d were kept, %+v %v", n, left, err)
	}
	collect(t, i)
	coming, err := i.client.ContentStore().ListStatuses(ctx)
	if err != nil || len(coming) != 0 {
		t.Errorf("%+v %v", coming, err)
	}
}

// The beginning of a blob is not what it was: the disk has lost it, or the registry sent something
// else. Each pull failed over what was there, without asking the registry again.
func TestABlobThatWasBegunWronglyIsFetchedAnew(t *testing.T) {
	const size = 4 << 20
	for what, sent := range map[string][]byte{
		"the beginning":   make([]byte, 1<<20),
		"all of the blob": make([]byte, size),
	} {
		t.Run(what, func(t *testing.T) {
			b := &breaking{body: large(size)}
			i := store(t)
			ref := b.breaks(t, i, sent)
			i = next(t, i)
			try(t, i.Sweep(connection.Namespaced(t.Context())))
			_, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
			try(t, err)
			if n := b.served.Load(); n < size || n > 2*size {
				t.Errorf("served %d bytes of %d", n, size)
			}
		})
	}
}
