// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/internal/images/peer"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// fakePeers are peers that do what a test says.
type fakePeers struct {
	copy func(b peer.Blob, offset int64, to io.Writer) (int64, error)

	mu    sync.Mutex
	asked []peer.Blob
	lied  []digest.Digest
}

// Copy implements Peers.
func (f *fakePeers) Copy(_ context.Context, b peer.Blob, offset int64, to io.Writer, progress func(int)) (peer.Copied, error) {
	f.mu.Lock()
	f.asked = append(f.asked, b)
	f.mu.Unlock()
	n, err := f.copy(b, offset, to)
	progress(int(n))
	done := peer.Copied{Bytes: n}
	if n > 0 {
		done.From = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}
	}
	return done, err
}

// Lied implements Peers.
func (f *fakePeers) Lied(b peer.Blob, from []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(from) == 1 {
		f.lied = append(f.lied, b.Digest)
	}
}

// gone returns what peers answer when none has the rest.
func gone(n int, err error) (int64, error) {
	if err == nil {
		err = errdefs.ErrNotFound
	}
	return int64(n), err
}

// blobsOf returns the parts of an image that peers may have, by digest.
func blobsOf(t *testing.T, img v1.Image) map[digest.Digest][]byte {
	t.Helper()
	all := map[digest.Digest][]byte{}
	add := func(b []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		all[digest.FromBytes(b)] = b
	}
	add(img.RawManifest())
	add(img.RawConfigFile())
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		add(io.ReadAll(r))
	}
	return all
}

// asks is what a registry was asked for.
type asks struct {
	blobs  map[digest.Digest][]byte // which it can send parts of
	broken bool                     // it cannot

	mu   sync.Mutex
	gets map[string]string // range by digest, "whole" for all of it
}

func (f *asks) front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "sha256:") {
			f.mu.Lock()
			if f.gets == nil {
				f.gets = map[string]string{}
			}
			what := r.Header.Get("Range")
			if what == "" {
				what = "whole"
			}
			name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
			f.gets[name] = what
			f.mu.Unlock()
			if b, ok := f.blobs[digest.Digest(name)]; ok && what != "whole" && !f.broken {
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func largeLayer(t *testing.T) (v1.Image, map[digest.Digest][]byte) {
	t.Helper()
	body := make([]byte, 300<<10)
	_, _ = rand.Read(body)
	img := imageOf(t, v1Config(), testimage.File{Name: "x", Mode: 0o755, Body: body})
	return img, blobsOf(t, img)
}

// PROPERTIES 41: whatever peers send, the image is the registry's. What they have sent of a blob is
// used if it is right, and no blob is asked for at the registry that they have sent.
func TestAPullFromPeersIsThePullFromTheRegistry(t *testing.T) {
	full := errors.New("no space left on device")
	for name, x := range map[string]struct {
		copy func(b []byte, offset int64, to io.Writer) (int64, error)
		want func(size int) string // what the registry is asked for of a layer; "" for nothing
		lied bool
	}{
		"have everything": {func(b []byte, at int64, to io.Writer) (int64, error) {
			n, err := to.Write(b[at:])
			return int64(n), err
		}, func(int) string { return "" }, false},
		"have nothing": {func([]byte, int64, io.Writer) (int64, error) {
			return gone(0, nil)
		}, func(int) string { return "whole" }, false},
		"die in the middle": {func(b []byte, at int64, to io.Writer) (int64, error) {
			return gone(to.Write(b[at : len(b)/2]))
		}, func(size int) string { return "bytes=" + strconv.Itoa(size/2) + "-" }, false},
		"die where the registry sends no parts": {func(b []byte, at int64, to io.Writer) (int64, error) {
			return gone(to.Write(b[at : len(b)/2]))
		}, func(int) string { return "whole" }, false},
		"lie": {func(b []byte, at int64, to io.Writer) (int64, error) {
			n, err := to.Write(bytes.Repeat([]byte("x"), len(b)-int(at)))
			return int64(n), err
		}, func(int) string { return "whole" }, true},
		"lie and die": {func(b []byte, at int64, to io.Writer) (int64, error) {
			return gone(to.Write(bytes.Repeat([]byte("x"), len(b)/2)))
		}, func(int) string { return "whole" }, true},
		"break the store": {func(b []byte, at int64, to io.Writer) (int64, error) {
			n, _ := to.Write(b[:10])
			return int64(n), full
		}, func(int) string { return "whole" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			img, blobs := largeLayer(t)
			f := asks{blobs: blobs, broken: name == "die where the registry sends no parts"}
			ref := testregistry.Start(t, testregistry.Front(f.front)).Push("team/app:1", img)
			peers := &fakePeers{copy: func(b peer.Blob, at int64, to io.Writer) (int64, error) {
				return x.copy(blobs[b.Digest], at, to)
			}}
			i := store(t)
			i.cfg.Peers = peers
			st, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx := connection.Namespaced(t.Context())
			for d, b := range blobs {
				got, err := content.ReadBlob(ctx, i.client.ContentStore(), ocispec.Descriptor{Digest: d})
				if err != nil || !bytes.Equal(got, b) {
					t.Errorf("%s is not the registry's: %v", d, err)
				}
				manifest := bytes.Contains(b, []byte("schemaVersion")) // of which a registry sends all instead of a part
				if got := f.gets[d.String()]; got != x.want(len(b)) && (!manifest || !f.broken) {
					t.Errorf("the registry was asked for %q of %d bytes, want %q", got, len(b), x.want(len(b)))
				}
			}
			if slices.Contains(peers.lied, st.Name.Target().Digest) != x.lied {
				t.Errorf("told of lies: %v", peers.lied)
			}
			for _, b := range peers.asked {
				if b.Repository != strings.TrimSuffix(ref, ":1") || b.Manifest != (b.Digest.String() == st.Name.Target().Digest.String()) {
					t.Errorf("peers were asked for %+v", b)
				}
			}
			left, err := i.client.ContentStore().ListStatuses(ctx)
			if err != nil || len(left) != 0 {
				t.Errorf("%v is left: %v", left, err)
			}
		})
	}
}

// PROPERTIES 41: what a pull that was cut off has left of a blob is gone on with. If that was
// wrong, nobody is put aside for it who did not send it.
func TestWhatPeersHaveLeftOfABlobIsGoneOnWith(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		t.Run(strconv.FormatBool(wrong), func(t *testing.T) {
			img, blobs := largeLayer(t)
			f := asks{blobs: blobs}
			ref := testregistry.Start(t, testregistry.Front(f.front)).Push("team/app:1", img)
			ctx, cancel := context.WithCancel(t.Context())
			var at int64
			peers := &fakePeers{}
			peers.copy = func(b peer.Blob, offset int64, to io.Writer) (int64, error) {
				body := blobs[b.Digest]
				if len(body) < 100<<10 {
					n, err := to.Write(body)
					return int64(n), err
				}
				at = offset
				if offset > 0 {
					n, err := to.Write(body[offset:])
					return int64(n), err
				}
				part := slices.Clone(body[:1000])
				if wrong {
					part[0]++
				}
				n, _ := to.Write(part)
				cancel()
				return int64(n), ctx.Err()
			}
			i := store(t)
			i.cfg.Peers = peers
			if _, err := i.Pull(ctx, ref, image.Credentials{}, "", nil); err == nil {
				t.Fatal("the pull was not cut off")
			}
			if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err != nil {
				t.Fatal(err)
			}
			if at != 1000 {
				t.Errorf("it was gone on with at %d", at)
			}
			if len(peers.lied) != 0 {
				t.Errorf("blamed: %v", peers.lied)
			}
			for d, b := range blobs {
				if got := f.gets[d.String()]; (got == "whole") != (wrong && len(b) > 100<<10) {
					t.Errorf("wrong %t: the registry was asked for %q of %d bytes", wrong, got, len(b))
				}
			}
		})
	}
}

// A peer that gets a blob while the registry sends it to this node sends the rest. What it sends
// wrong comes from the registry as a whole.
func TestPeersAreAskedAgainForWhatTheRegistrySends(t *testing.T) {
	for _, lies := range []bool{false, true} {
		t.Run(strconv.FormatBool(lies), func(t *testing.T) {
			body := make([]byte, 2*worthAsking)
			_, _ = rand.Read(body)
			img := imageOf(t, v1Config(), testimage.File{Name: "x", Mode: 0o755, Body: body})
			blobs := blobsOf(t, img)
			f := asks{blobs: blobs}
			ref := testregistry.Start(t, testregistry.Front(f.front)).Push("team/app:1", img)
			var offsets []int64
			peers := &fakePeers{}
			peers.copy = func(b peer.Blob, offset int64, to io.Writer) (int64, error) {
				if b.Size < worthAsking {
					return gone(0, nil)
				}
				offsets = append(offsets, offset)
				rest := blobs[b.Digest][offset:]
				switch {
				case len(offsets) < 3:
					return gone(0, nil)
				case lies:
					rest = make([]byte, len(rest))
				case len(offsets) == 3: // and one that dies gives the registry its turn again
					return gone(to.Write(rest[:1000]))
				}
				n, err := to.Write(rest)
				return int64(n), err
			}
			i := store(t)
			i.cfg.Peers, i.askAgain = peers, 0
			if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err != nil {
				t.Fatal(err)
			}
			for d, b := range blobs {
				got, err := content.ReadBlob(connection.Namespaced(t.Context()), i.client.ContentStore(), ocispec.Descriptor{Digest: d})
				if err != nil || !bytes.Equal(got, b) {
					t.Errorf("%s is not the registry's: %v", d, err)
				}
				if len(b) < worthAsking {
					continue
				}
				if got := f.gets[d.String()]; (got == "whole") != lies {
					t.Errorf("the registry was asked for %q last", got)
				}
				if slices.Contains(peers.lied, d) != lies {
					t.Errorf("told of lies: %v", peers.lied)
				}
			}
			if want := 4; lies && len(offsets) != 3 || !lies && len(offsets) != want || !slices.IsSorted(offsets) || offsets[0] != 0 || offsets[1] == 0 {
				t.Errorf("peers were asked for the rest from %v on", offsets)
			}
		})
	}
}

// A registry that hangs up ends the pull as it does without peers, and the next pull goes on from
// there.
func TestARegistryThatHangsUpEndsThePullAndItGoesOn(t *testing.T) {
	body := make([]byte, 2*worthAsking)
	_, _ = rand.Read(body)
	img := imageOf(t, v1Config(), testimage.File{Name: "x", Mode: 0o755, Body: body})
	blobs := blobsOf(t, img)
	var cut atomic.Bool
	cut.Store(true)
	f := asks{blobs: blobs}
	ref := testregistry.Start(t, testregistry.Front(f.front), testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b := blobs[digest.Digest(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])]
			if r.Method != http.MethodGet || len(b) < worthAsking || !cut.Load() {
				next.ServeHTTP(w, r)
				return
			}
			from := 0
			if rest := r.Header.Get("Range"); rest != "" {
				from = len(b) / 2
				w.Header().Set("Content-Range", "bytes "+strconv.Itoa(from)+"-"+strconv.Itoa(len(b)-1)+"/"+strconv.Itoa(len(b)))
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(b)-from))
			if from > 0 {
				w.WriteHeader(http.StatusPartialContent)
			}
			_, _ = w.Write(b[from : len(b)/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
	})).Push("team/app:1", img)
	i := store(t)
	i.cfg.Peers = &fakePeers{copy: func(peer.Blob, int64, io.Writer) (int64, error) { return gone(0, nil) }}
	if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err == nil || !strings.Contains(err.Error(), io.ErrUnexpectedEOF.Error()) {
		t.Fatalf("cut off: %v", err)
	}
	cut.Store(false)
	if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err != nil {
		t.Fatal(err)
	}
	for d, b := range blobs {
		if want := "bytes=" + strconv.Itoa(len(b)/2) + "-"; len(b) > worthAsking && f.gets[d.String()] != want {
			t.Errorf("the registry was asked for %q, want %q", f.gets[d.String()], want)
		}
	}
}

// What the registry has begun to send is no business of peers.
func TestWhatTheRegistryHasBegunItFinishes(t *testing.T) {
	img, blobs := largeLayer(t)
	f := asks{blobs: blobs}
	ref := testregistry.Start(t, testregistry.Front(f.front)).Push("team/app:1", img)
	peers := &fakePeers{copy: func(peer.Blob, int64, io.Writer) (int64, error) { return gone(0, nil) }}
	i := store(t)
	i.cfg.Peers = peers
	ctx, done, err := i.lease(t.Context(), "")
	try(t, err)
	defer done()
	layers, err := img.Layers()
	try(t, err)
	d, err := layers[0].Digest()
	try(t, err)
	mt, err := layers[0].MediaType()
	try(t, err)
	desc := ocispec.Descriptor{MediaType: string(mt), Digest: digest.Digest(d.String()), Size: int64(len(blobs[digest.Digest(d.String())]))}
	w, err := i.client.ContentStore().Writer(ctx, content.WithRef(remotes.MakeRefKey(ctx, desc)), content.WithDescriptor(desc))
	try(t, err)
	_, err = w.Write(blobs[desc.Digest][:1000])
	try(t, err)
	try(t, w.Close())
	if _, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil); err != nil {
		t.Fatal(err)
	}
	for _, b := range peers.asked {
		if b.Digest == desc.Digest {
			t.Error("peers were asked for it")
		}
	}
}

// PROPERTIES 41: a registry that does not let a node have an image decides, whatever peers have:
// they are not asked.
func TestTheRegistryDecidesBeforePeersAreAsked(t *testing.T) {
	img, _ := largeLayer(t)
	ref := testregistry.Start(t, testregistry.BasicAuth("me", "secret")).Push("team/app:1", img)
	d, err := img.Digest()
	try(t, err)
	peers := &fakePeers{copy: func(peer.Blob, int64, io.Writer) (int64, error) { return gone(0, nil) }}
	i := store(t)
	i.cfg.Peers = peers
	for _, name := range []string{ref, strings.TrimSuffix(ref, ":1") + "@" + d.String(), "127.0.0.1:1/team/app@" + d.String()} {
		if _, err := i.Pull(t.Context(), name, image.Credentials{}, "", nil); err == nil {
			t.Errorf("%s was pulled", name)
		}
	}
	if len(peers.asked) != 0 {
		t.Errorf("peers were asked for %v", peers.asked)
	}
}

// PROPERTIES 41: a peer gets what an image of the repository consists of that it names, from the
// moment on that the pull has it, and nothing else.
func TestPeersGetWhatTheRepositoryTheyNameHas(t *testing.T) {
	img, blobs := largeLayer(t)
	layers, err := img.Layers()
	try(t, err)
	ld, err := layers[0].Digest()
	try(t, err)
	layer := digest.Digest(ld.String())
	release, reached := make(chan struct{}), make(chan struct{}, 1)
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, layer.String()) {
				reached <- struct{}{}
				<-release
			}
			next.ServeHTTP(w, r)
		})
	}))
	ref := reg.Push("team/app:1", img)
	repository := strings.TrimSuffix(ref, ":1")
	i := store(t)
	has := func(repository string, d digest.Digest) bool {
		t.Helper()
		c, err := i.Open(t.Context(), repository, d)
		if err != nil {
			if !errdefs.IsNotFound(err) {
				t.Error(err)
			}
			return false
		}
		defer c.Close()
		b, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size))
		if err != nil || !bytes.Equal(b, blobs[d]) || (c.MediaType != "") != bytes.Contains(b, []byte("schemaVersion")) {
			t.Errorf("%s: %q %v", d, c.MediaType, err)
		}
		return true
	}
	ended := make(chan error, 1)
	go func() {
		_, err := i.Pull(t.Context(), ref, image.Credentials{}, "", nil)
		ended <- err
	}()
	<-reached
	if d, err := img.Digest(); err != nil || !has(repository, digest.Digest(d.String())) {
		t.Error("the manifest is not shared while the pull goes on")
	}
	if d, err := img.Digest(); err != nil || has("evil.example/team/app", digest.Digest(d.String())) {
		t.Error("the manifest is shared as a part of another repository while the pull goes on")
	}
	if has(repository, layer) {
		t.Error("a layer is shared that is not here yet")
	}
	close(release)
	try(t, <-ended)
	for d := range blobs {
		if !has(repository, d) {
			t.Errorf("%s is not shared", d)
		}
		for _, other := range []string{"", "team/app", "evil.example/team/app", repository + "/x", strings.TrimSuffix(repository, "/app")} {
			if has(other, d) {
				t.Errorf("%s is shared as a part of %q", d, other)
			}
		}
	}
	// What no image has is not shared, though it is in the content store.
	ctx, done, err := i.lease(t.Context(), "")
	try(t, err)
	defer done()
	secret := []byte("secret")
	desc := ocispec.Descriptor{Digest: digest.FromBytes(secret), Size: int64(len(secret))}
	try(t, content.WriteBlob(ctx, i.client.ContentStore(), "secret", bytes.NewReader(secret), desc))
	if has(repository, desc.Digest) {
		t.Error("a blob is shared that is in no image")
	}
}
