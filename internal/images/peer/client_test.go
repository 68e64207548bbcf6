// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/images/peer"
	"berth/test/peertest"
)

func nothing(int) {}

// short is a time-out that a peer of a test reaches which does not answer.
const short = 250 * time.Millisecond

func TestABlobComesFromThePeerThatHasIt(t *testing.T) {
	w := newWorld(t)
	b, want := blob(1 << 20)
	has := w.serves(with(b))
	c := w.client(generous, w.serves(contents{}), has, w.serves(contents{}), nobody(t))
	for _, offset := range []int64{0, 1, 1<<20 - 1} {
		var got bytes.Buffer
		done, err := c.Copy(t.Context(), want, offset, &got, nothing)
		if err != nil || !bytes.Equal(got.Bytes(), b[offset:]) || done.Bytes != int64(len(b))-offset {
			t.Errorf("from %d on: %+v %v, %d bytes", offset, done, err, got.Len())
		}
		if len(done.From) != 1 || done.From[0].String() != has {
			t.Errorf("it came from %v instead of %s", done.From, has)
		}
	}
}

func TestNoPeerThatHasItIsNotFound(t *testing.T) {
	w := newWorld(t)
	_, want := blob(10)
	for name, peers := range map[string][]string{
		"no peers":   {},
		"others":     {w.serves(contents{}), w.serves(contents{"registry.example/other": {}})},
		"none there": {nobody(t)},
	} {
		if _, err := w.client(generous, peers...).Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// PROPERTIES 41: whatever a peer does instead of sending the bytes, the rest comes from another one, and
// the peer is put aside.
func TestWhereAPeerFailsTheNextOneGoesOn(t *testing.T) {
	b, want := blob(1 << 20)
	half := len(b) / 2
	for kind, misbehave := range map[string]http.HandlerFunc{
		peer.KindStalled: sends(len(b), func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(b[:half])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}),
		peer.KindCutOff: sends(len(b), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(b[:half])
			panic(http.ErrAbortHandler)
		}),
		peer.KindSlow: sends(len(b), func(w http.ResponseWriter, r *http.Request) {
			for i := range b {
				if _, err := w.Write(b[i : i+1]); err != nil || http.NewResponseController(w).Flush() != nil {
					return
				}
				select {
				case <-r.Context().Done():
					return
				case <-time.After(short / 10):
				}
			}
		}),
		peer.KindWrong: sends(len(b), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusTemporaryRedirect)
		}),
		peer.KindWrong + " without an end": sends(len(b), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Del("Content-Length")
			for {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}),
		peer.KindWrong + " with more": sends(len(b), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "2000000")
			_, _ = w.Write(make([]byte, 2000000))
		}),
	} {
		t.Run(kind, func(t *testing.T) {
			kind, _, _ := strings.Cut(kind, " ")
			w := newWorld(t)
			c := w.clientWith(func(cfg *peer.ClientConfig) {
				cfg.Peers, cfg.AskTimeout = []string{w.fake(misbehave)}, generous
				if kind == peer.KindStalled || kind == peer.KindSlow {
					cfg.Timeout = 8 * short
				}
			})
			var got bytes.Buffer
			done, err := c.Copy(t.Context(), want, 0, &got, nothing)
			if !errdefs.IsNotFound(err) || !slices.Equal(w.failures(), []string{kind}) {
				t.Fatalf("%v, failures %v, want %s", err, w.failures(), kind)
			}
			if done.Bytes != int64(got.Len()) || !bytes.Equal(got.Bytes(), b[:got.Len()]) || got.Len() == len(b) {
				t.Errorf("%d bytes, %d of them written", done.Bytes, got.Len())
			}
			// It is left alone from now on.
			if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) || len(w.failures()) != 1 {
				t.Errorf("%v, failures %v", err, w.failures())
			}
		})
	}
}

// A blob that one peer has begun is gone on with where it was by the next one.
func TestABlobGoesOnAtAnotherPeerFromWhereItWas(t *testing.T) {
	w := newWorld(t)
	b, want := blob(1 << 20)
	var bad atomic.Bool
	bad.Store(true)
	good := make(chan struct{})
	first := w.fake(sends(len(b), func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(b[:1000])
		_ = http.NewResponseController(w).Flush()
		bad.Store(false)
		close(good)
		panic(http.ErrAbortHandler)
	}))
	second := w.fake(func(rw http.ResponseWriter, r *http.Request) {
		if bad.Load() { // the first one is asked first
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		<-good
		http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(b))
	})
	var got bytes.Buffer
	done, err := w.client(generous, first, second).Copy(t.Context(), want, 0, &got, nothing)
	if err != nil || !bytes.Equal(got.Bytes(), b) || len(done.From) != 2 {
		t.Errorf("%+v %v", done, err)
	}
	if w.bytes != int64(len(b)) {
		t.Errorf("%d bytes came for a blob of %d", w.bytes, len(b))
	}
}

// A peer that is busy is not put aside, and one that has lied is.
func TestWhoHasLiedIsLeftAloneAndWhoIsBusyIsNot(t *testing.T) {
	w := newWorld(t)
	b, want := blob(100)
	busy := true
	at := w.fake(func(rw http.ResponseWriter, r *http.Request) {
		if busy && r.Method == http.MethodGet {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(b))
	})
	c := w.client(generous, at)
	if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) || len(w.failures()) != 0 {
		t.Fatalf("%v %v", err, w.failures())
	}
	busy = false
	done, err := c.Copy(t.Context(), want, 0, io.Discard, nothing)
	if err != nil {
		t.Fatal(err)
	}
	c.Lied(want, done.From)
	if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) || !slices.Equal(w.failures(), []string{peer.KindLied}) {
		t.Errorf("%v %v", err, w.failures())
	}
}

// A disk that takes nothing is not the fault of the peer.
func TestAnErrorOfTheStoreIsNotThePeers(t *testing.T) {
	w := newWorld(t)
	b, want := blob(100)
	c := w.client(generous, w.serves(with(b)))
	full := errors.New("the disk is full")
	if _, err := c.Copy(t.Context(), want, 0, failing{full}, nothing); !errors.Is(err, full) || len(w.failures()) != 0 {
		t.Errorf("%v %v", err, w.failures())
	}
	if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); err != nil {
		t.Error(err)
	}
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

// A node whose own certificate cannot be read does not blame its peers, and one that is renewed is used
// at once.
func TestCertificatesAreReadAgain(t *testing.T) {
	w := newWorld(t)
	b, want := blob(100)
	at := w.serves(with(b))
	files := w.ca.Node("mine", "somebody.else")
	c := w.clientWith(func(cfg *peer.ClientConfig) { cfg.Files, cfg.Peers = files, []string{at} })
	copied := func() error {
		_, err := c.Copy(t.Context(), want, 0, io.Discard, nothing)
		return err
	}
	missing := files
	missing.Cert += ".missing"
	lost := w.clientWith(func(cfg *peer.ClientConfig) { cfg.Files, cfg.Peers = missing, []string{at} })
	if _, err := lost.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) || len(w.failures()) != 0 {
		t.Errorf("%v, failures %v", err, w.failures())
	}
	if err := copied(); !errdefs.IsNotFound(err) {
		t.Errorf("a client that is not a peer: %v", err)
	}
	w.ca.Node("mine", peertest.Name)
	c = w.clientWith(func(cfg *peer.ClientConfig) { cfg.Files, cfg.Peers = files, []string{at} })
	if err := copied(); err != nil {
		t.Error(err)
	}
}

// A server without the name of peers, or of another authority, gets no question.
func TestOnlyPeersAreAsked(t *testing.T) {
	w := newWorld(t)
	_, want := blob(100)
	var asked atomic.Int32
	count := func(http.ResponseWriter, *http.Request) { asked.Add(1) }
	strange := peertest.NewAuthority(t, t.TempDir()).Node("node", peertest.Name)
	c := w.client(generous, w.fakeWith(w.ca.Node("other", "other"), count), w.fakeWith(strange, count))
	if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) || asked.Load() != 0 {
		t.Errorf("%v, asked %d times", err, asked.Load())
	}
	if got := w.failures(); !slices.Equal(got, []string{peer.KindUnreachable, peer.KindUnreachable}) {
		t.Errorf("failures %v", got)
	}
}

// A peer is told what is wanted, and nothing of who wants it at the registry.
func TestAPeerGetsNoCredentials(t *testing.T) {
	w := newWorld(t)
	b, want := blob(100)
	headers := make(chan http.Header, 10)
	c := w.client(generous, w.fake(func(rw http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(b))
	}))
	if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); err != nil {
		t.Fatal(err)
	}
	close(headers)
	for h := range headers {
		for _, k := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
			if h.Get(k) != "" {
				t.Errorf("%s: %s", k, h.Get(k))
			}
		}
	}
}

// Many peers are asked side by side, and few of them.
func TestFewPeersAreAskedSideBySide(t *testing.T) {
	w := newWorld(t)
	_, want := blob(100)
	const ask = 4
	var asked atomic.Int32
	all := make(chan struct{})
	var peers []string
	for range 3 * ask {
		peers = append(peers, w.fake(func(rw http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == ask {
				close(all)
			}
			select {
			case <-all: // each waits until all are asked
			case <-r.Context().Done():
			}
			rw.WriteHeader(http.StatusNotFound)
		}))
	}
	c := w.clientWith(func(cfg *peer.ClientConfig) { cfg.Peers, cfg.Ask = peers, ask })
	if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) || asked.Load() != ask || len(w.failures()) != 0 {
		t.Errorf("%v, asked %d times, failures %v", err, asked.Load(), w.failures())
	}
}

// Whoever had a part of an image is asked for the next one, also among many.
func TestThePeerThatHadThePreviousBlobIsAsked(t *testing.T) {
	w := newWorld(t)
	b, first := blob(100)
	b2, second := blob(100)
	has := contents{repository: {first.Digest: b, second.Digest: b2}}
	at := w.serves(has)
	peers := []string{at}
	for range 20 {
		peers = append(peers, w.serves(contents{}))
	}
	c := w.clientWith(func(cfg *peer.ClientConfig) { cfg.Peers, cfg.Ask = peers, 1 })
	for found := false; !found; {
		_, err := c.Copy(t.Context(), first, 0, io.Discard, nothing)
		found = err == nil
	}
	for range 10 {
		if _, err := c.Copy(t.Context(), second, 0, io.Discard, nothing); err != nil {
			t.Fatal(err)
		}
	}
}

// A node that is in the list itself does not ask itself.
func TestANodeDoesNotAskItself(t *testing.T) {
	w := newWorld(t)
	b, want := blob(100)
	at := w.serves(with(b))
	port := at[strings.LastIndex(at, ":"):]
	for _, own := range []string{at, "0.0.0.0" + port, "[::]" + port} {
		c := w.clientWith(func(cfg *peer.ClientConfig) {
			cfg.Peers = []string{at}
			cfg.Own = func() net.Addr { return net.TCPAddrFromAddrPort(mustAddr(t, own)) }
		})
		if _, err := c.Copy(t.Context(), want, 0, io.Discard, nothing); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", own, err)
		}
	}
}

// A copy ends with its pull, and that is not the fault of a peer.
func TestACopyEndsWithItsPull(t *testing.T) {
	w := newWorld(t)
	b, want := blob(1 << 20)
	ctx, cancel := context.WithCancel(t.Context())
	c := w.client(generous, w.fake(sends(len(b), func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write(b[:10])
		_ = http.NewResponseController(rw).Flush()
		cancel()
		<-r.Context().Done()
	})))
	if _, err := c.Copy(ctx, want, 0, io.Discard, nothing); !errors.Is(err, context.Canceled) || len(w.failures()) != 0 {
		t.Errorf("%v %v", err, w.failures())
	}
}
