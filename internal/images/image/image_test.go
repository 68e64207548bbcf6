// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fake is an image store in memory. Pulls and unpackings wait for their release.
type fake struct {
	mu      sync.Mutex
	names   map[string]Stored
	pulls   int
	creds   Credentials
	release chan struct{}
	sink    Sink   // of the last pull
	blobs   []Blob // of each image
	fetched map[string]int64
	reads   int
	file    []byte          // of each image
	packed  map[string]bool // chain IDs of images that are not unpacked
	unpacks int

	contents Contents
	target   ocispec.Descriptor // what each name stands for at the registry
	registry Registry
}

func newFake() *fake {
	return &fake{
		names:   map[string]Stored{},
		release: make(chan struct{}),
		file:    []byte("p"),
		packed:  map[string]bool{},
	}
}

// manifestID is the digest of what every name in the fake stands for.
var manifestID = digest.Digest("sha256:" + strings.Repeat("d", 64))

func stored(name, id string) Stored { return storedAs(name, id, manifestID) }

func storedAs(name, id string, target digest.Digest) Stored {
	n, _ := NewName(name, ocispec.Descriptor{Digest: target}, id)
	return Stored{Name: n, ID: id, ChainID: "chain-" + id, Size: 7}
}

var imageID = "sha256:" + strings.Repeat("a", 64)

func (f *fake) List(context.Context) ([]Stored, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var l []Stored
	for _, s := range f.names {
		l = append(l, s)
	}
	return l, nil
}

func (f *fake) Get(_ context.Context, name string) (Stored, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.names[name]
	if !ok {
		return Stored{}, errdefs.ErrNotFound
	}
	return s, nil
}

func (f *fake) Pull(ctx context.Context, ref string, c Credentials, _ string, sink Sink) (Stored, error) {
	f.mu.Lock()
	f.pulls++
	f.creds, f.sink = c, sink
	f.mu.Unlock()
	if err := sink.Resolved(ctx, f.target, f.registry); err != nil {
		return Stored{}, fmt.Errorf("resolve %s: %w", ref, err)
	}
	sink.Needs(f.blobs)
	select {
	case <-f.release:
	case <-ctx.Done():
		return Stored{}, ctx.Err()
	}
	s := stored(ref, imageID)
	f.put(s)
	return s, nil
}

// put stores all names that an image gets.
func (f *fake) put(s Stored) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range s.NamesGiven() {
		s.Name = n
		f.names[n.String()] = s
	}
}

func (f *fake) Fetched(context.Context, []Blob) (map[string]int64, error) { return f.fetched, nil }

func (f *fake) Checkpoint(context.Context, string) (io.ReadCloser, error) {
	return nil, errdefs.ErrNotFound
}

func (f *fake) Delete(_ context.Context, n Name) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.names[n.String()]; !ok || s.Name.Target().Digest != n.Target().Digest {
		return errdefs.ErrNotFound
	}
	delete(f.names, n.String())
	return nil
}

func (f *fake) ReadFiles(_ context.Context, r Root, _ int64, _ ...string) ([][]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.packed[r.ChainID] {
		return nil, fmt.Errorf("parent snapshot %s does not exist: %w", r.ChainID, errdefs.ErrNotFound)
	}
	f.reads++
	return [][]byte{f.file, []byte("g")}, nil
}

func (f *fake) Unpack(ctx context.Context, n Name, _ string) error {
	f.mu.Lock()
	f.unpacks++
	f.mu.Unlock()
	select {
	case <-f.release:
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.packed, f.names[n.String()].ChainID)
	return nil
}

func (f *fake) Import(_ context.Context, _, _ string, read func(done, total int64)) ([]Stored, []string, error) {
	read(1, 3)
	read(2, 3)
	<-f.release
	return nil, nil, nil
}
func (f *fake) CopyOut(context.Context, Root, map[string]string) error { return nil }
func (f *fake) Usage(context.Context) (Usage, error) {
	return Usage{Path: "/x", Images: Space{Bytes: 1}, Containers: Space{Bytes: 2}, At: time.Now()}, nil
}
func (f *fake) Contents(context.Context) (Contents, error) { return f.contents, nil }

func (f *fake) DropKept(context.Context) error {
	f.contents.Kept = nil
	return nil
}
func (f *fake) Snapshotter() string      { return "fake" }
func (f *fake) Registry(string) Registry { return f.registry }

// service runs one in the bubble.
func service(t *testing.T, f *fake) *Service {
	t.Helper()
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

func TestAHundredCallersOnePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				ref := "busybox"
				if i%2 == 0 {
					ref = "docker.io/library/busybox:latest"
				}
				if id, err := s.Pull(t.Context(), ref, nil, Caller{}); err != nil || id != imageID {
					t.Errorf("%s %v", id, err)
				}
			})
		}
		synctest.Wait()
		close(f.release)
		wg.Wait()
		if f.pulls != 1 {
			t.Errorf("%d pulls", f.pulls)
		}
		i, err := s.Resolve("busybox")
		if err != nil || len(i.Tags) != 1 || len(i.Digests) != 1 || i.Ref() != i.Digests[0] {
			t.Errorf("%+v %v", i, err)
		}
	})
}

func TestAPullEndsWhenAllWhoAskedHaveGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		one, cancelOne := context.WithCancel(t.Context())
		two, cancelTwo := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() { _, err := s.Pull(one, "x", nil, Caller{}); errs <- err }()
		go func() { _, err := s.Pull(two, "x", nil, Caller{}); errs <- err }()
		synctest.Wait()
		cancelOne()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		synctest.Wait()
		if s.pulls.inFlight() != 1 {
			t.Error("the other's pull ended with it")
		}
		cancelTwo()
		<-errs
		synctest.Wait()
		if s.pulls.inFlight() != 0 {
			t.Error("it goes on for nobody")
		}
	})
}

func TestAPullWithoutAByteIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		began := time.Now()
		errs := make(chan error)
		go func() { _, err := s.Pull(t.Context(), "x", nil, Caller{}); errs <- err }()
		time.Sleep(4 * time.Minute)
		f.mu.Lock()
		f.sink.Received(1)
		f.mu.Unlock()
		err := <-errs
		if d := time.Since(began); d != 9*time.Minute || !strings.Contains(err.Error(), "no byte came") {
			t.Errorf("after %v: %v", d, err)
		}
	})
}

// A registry that sent a byte now and then held a pull for ever, and whoever waited for it.
func TestAPullThatHardlyGetsAByteIsGivenUp(t *testing.T) {
	for _, rate := range []int{1 << 9, 1 << 11} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			s := New(f, Config{MinBytesPerMinute: 1 << 10, Logger: slog.New(slog.DiscardHandler)})
			errs := make(chan error, 1)
			began := time.Now()
			go func() { _, err := s.Pull(t.Context(), "x", nil, Caller{}); errs <- err }()
			for range 3600 { // an hour
				time.Sleep(time.Second)
				f.mu.Lock()
				bytes := f.sink.Received
				f.mu.Unlock()
				sent := time.Since(began)
				bytes(rate*int(sent/time.Second)/60 - rate*int(sent/time.Second-1)/60)
				if len(errs) > 0 {
					break
				}
			}
			if enough := rate == 1<<11; enough {
				f.release <- struct{}{}
				if err := <-errs; err != nil || time.Since(began) != time.Hour {
					t.Errorf("%d bytes in a minute, after %v: %v", rate, time.Since(began), err)
				}
			} else if err := <-errs; time.Since(began) > 6*time.Minute || !strings.Contains(err.Error(), "a kibibyte a minute") {
				t.Errorf("%d bytes in a minute, after %v: %v", rate, time.Since(began), err)
			}
		})
	}
}

// The pull of an image whose last layer takes more than PullTimeout to unpack was given up, since
// no byte came meanwhile.
func TestAPullIsNotGivenUpWhileItUnpacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		errs := make(chan error)
		pull := func() { _, err := s.Pull(t.Context(), "x", nil, Caller{}); errs <- err }
		go pull()
		synctest.Wait()
		f.sink.Layer(LayerBegins)
		f.sink.Layer(LayerBegins)
		time.Sleep(9 * time.Minute)
		f.sink.Layer(LayerEnds)
		time.Sleep(9 * time.Minute)
		f.sink.Layer(LayerEnds)
		time.Sleep(4 * time.Minute)
		f.release <- struct{}{}
		if err := <-errs; err != nil {
			t.Error(err)
		}
		go pull()
		synctest.Wait()
		began := time.Now()
		f.sink.Layer(LayerBegins)
		f.sink.Received(1)
		err := <-errs
		if d := time.Since(began); d != 10*time.Minute || !strings.Contains(err.Error(), "no layer was unpacked within 10m0s") {
			t.Errorf("after %v: %v", d, err)
		}
	})
}

// A pull whose layers waited for those of other images was given up, as if it had unpacked them.
func TestAPullIsNotGivenUpWhileItsLayersWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		errs := make(chan error, 1)
		go func() { _, err := s.Pull(t.Context(), "x", nil, Caller{}); errs <- err }()
		synctest.Wait()
		f.sink.Layer(LayerBegins)
		f.sink.Layer(LayerWaits)
		time.Sleep(time.Hour)
		f.sink.Received(1)
		f.sink.Received(0)
		time.Sleep(time.Hour)
		if len(errs) > 0 {
			t.Fatalf("while its layer waits: %v", <-errs)
		}
		began := time.Now()
		f.sink.Layer(LayerGoesOn)
		err := <-errs
		if d := time.Since(began); d != 10*time.Minute || !strings.Contains(err.Error(), "no layer was unpacked within 10m0s") {
			t.Errorf("%v after its layer began: %v", d, err)
		}
	})
}

func TestCredentials(t *testing.T) {
	for _, tt := range []struct {
		name string
		auth *runtimeapi.AuthConfig
		want Credentials
	}{
		{"r.example/x", nil, Credentials{}},
		{"r.example/x", &runtimeapi.AuthConfig{Username: "u", Password: "p"}, Credentials{Username: "u", Password: "p"}},
		{"r.example/x", &runtimeapi.AuthConfig{Username: "u", Password: "p", ServerAddress: "https://r.example/v2/"}, Credentials{Username: "u", Password: "p"}},
		{"busybox", &runtimeapi.AuthConfig{Username: "u", Password: "p", ServerAddress: "https://index.docker.io/v1/"}, Credentials{Username: "u", Password: "p"}},
		{"x", &runtimeapi.AuthConfig{IdentityToken: "t"}, Credentials{IdentityToken: "t"}},
		{"x", &runtimeapi.AuthConfig{RegistryToken: "t"}, Credentials{RegistryToken: "t"}},
		{"x", &runtimeapi.AuthConfig{Auth: base64.StdEncoding.EncodeToString([]byte("u:p:q"))}, Credentials{Username: "u", Password: "p:q"}},
	} {
		got, err := credentials(tt.name, tt.auth)
		if err != nil || got != tt.want {
			t.Errorf("%s %v: %+v %v", tt.name, tt.auth, got, err)
		}
	}
	// They were dropped without a word.
	other := &runtimeapi.AuthConfig{Username: "u", Password: "p", ServerAddress: "https://other.example/v1/"}
	if _, err := credentials("r.example/x", other); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), `"other.example"`) || !strings.Contains(err.Error(), `"r.example"`) {
		t.Errorf("credentials for another registry: %v", err)
	}
	for _, bad := range []string{"!", base64.StdEncoding.EncodeToString([]byte("nocolon"))} {
		if _, err := credentials("x", &runtimeapi.AuthConfig{Auth: bad}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestResolveAndRemove(t *testing.T) {
	f := newFake()
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	other := "sha256:" + strings.Repeat("b", 64)
	for name, id := range map[string]string{"docker.io/library/one:latest": imageID, "r.example/two:2": imageID, imageID: imageID, "docker.io/library/other:1": other, other: other} {
		f.names[name] = stored(name, id)
	}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"one", "docker.io/library/one", "r.example/two:2", imageID, imageID[7:], "aaaaaa", "sha256:aaaa"} {
		if i, err := s.Resolve(ref); err != nil || i.ID != imageID || len(i.Tags) != 2 {
			t.Errorf("%s: %+v %v", ref, i, err)
		}
	}
	for _, ref := range []string{"absent", "r.example/two:3", "aaa"} {
		if _, err := s.Resolve(ref); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), ref) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if list, err := s.List(nil); err != nil || len(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
	for range 2 {
		if err := s.Remove(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.names) != 2 {
		t.Errorf("left: %v", f.names)
	}
	if _, err := Normalize("a/UPPER"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

func TestChangesByOthersAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := service(t, f)
		f.put(stored("r.example/new:1", imageID))
		s.Changed("r.example/new:1")
		synctest.Wait()
		if _, err := s.Resolve("r.example/new:1"); err != nil {
			t.Error(err)
		}
	})
}

func TestMoreChangesThanFitAreReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
		s.loaded.mu.index.put(stored("r.example/gone:1", imageID))
		for i := range 5000 { // nobody takes them yet
			s.Changed(fmt.Sprint("r.example/x:", i))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Run(ctx) })
		synctest.Wait()
		if _, err := s.Resolve("r.example/gone:1"); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
		cancel()
		wg.Wait()
	})
}

func TestFilesAreReadOncePerImage(t *testing.T) {
	f := newFake()
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	for range 3 {
		if p, g, err := s.Files(t.Context(), Root{ChainID: "chain"}); err != nil || string(p) != "p" || string(g) != "g" {
			t.Fatal(string(p), string(g), err)
		}
	}
	if f.reads != 1 {
		t.Errorf("%d reads", f.reads)
	}
}

// The files of 256 images were remembered however large they were: 2 GiB.
func TestFilesThatAreRememberedAreBoundedInBytes(t *testing.T) {
	f := newFake()
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	f.file = make([]byte, 1<<20)
	for i := range 100 {
		if _, _, err := s.Files(t.Context(), Root{ChainID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for _, v := range s.files.by {
		total += len(v[0]) + len(v[1])
	}
	if total > maxCachedFiles || total == 0 {
		t.Errorf("%d bytes are held", total)
	}
	f.file = make([]byte, maxEtcFile) // it would push out all others
	before := len(s.files.by)
	if _, _, err := s.Files(t.Context(), Root{ChainID: "huge"}); err != nil || len(s.files.by) != before {
		t.Errorf("%d entries after %d: %v", len(s.files.by), before, err)
	}
}

func (f *flights[K, V]) inFlight() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.by)
}
