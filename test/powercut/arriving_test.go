// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/testimage/testregistry"
)

// stages is at how many places of a pull the power is cut, by the bytes of layers that have come.
const stages = 20

// gate lets so many bytes of layers through, and keeps back the rest.
type gate struct {
	mu      sync.Mutex
	left    int64
	reached chan struct{} // closed once nothing is left
}

func (g *gate) set(n int64) (reached <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left, g.reached = n, make(chan struct{})
	return g.reached
}

// pass returns how many of n bytes may be sent.
func (g *gate) pass(n int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := int(min(int64(n), g.left))
	if g.left -= int64(m); g.left == 0 && n > 0 {
		select {
		case <-g.reached:
		default:
			close(g.reached)
		}
	}
	return m
}

// gated is an answer that ends at the gate, and hangs there until its client goes.
type gated struct {
	http.ResponseWriter
	g   *gate
	ctx context.Context
}

// Write sends bytes as far as the gate lets them.
func (w gated) Write(p []byte) (int, error) {
	m := w.g.pass(len(p))
	n, err := w.ResponseWriter.Write(p[:m])
	if m < len(p) {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		<-w.ctx.Done()
		return n, w.ctx.Err()
	}
	return n, err
}

// PROPERTIES 66: the power is cut at each of twenty places of a pull whose layers are unpacked
// while they arrive, three times with CUTS=60. No image that is listed then has a wrong file, and
// the next pull makes it whole from what is on the disk.
func TestAPowerCutWhileALayerArrivesMakesNoImageWrong(t *testing.T) {
	d := newDisk(t, fileSystem())
	im, img := makeImage(t, t.TempDir(), "localhost/arrives:1", 7)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	blobs := map[string]bool{}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		n, err := l.Size()
		if err != nil {
			t.Fatal(err)
		}
		blobs[digest.String()] = true
		size += n
	}
	g := &gate{}
	g.set(size + 1)
	reg := testregistry.Start(t, testregistry.Front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if blobs[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]] && r.Method == http.MethodGet {
				w = gated{w, g, r.Context()}
			}
			next.ServeHTTP(w, r)
		})
	}))
	im.ref = reg.Push("arrives:1", img)
	pull := &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: im.ref}}
	n := start(t, d, false)
	for _, round := range cuts(t) {
		stage := round*7%stages + 1 // far apart also in a few rounds
		reached := g.set(size * int64(stage) / stages)
		ctx, cancel := context.WithCancel(t.Context())
		pulled := make(chan struct{})
		go func() {
			defer close(pulled)
			_, _ = n.PullImage(ctx, pull)
		}()
		select {
		case <-reached:
		case <-pulled: // the layers that were here before are not sent again
		}
		powerCut(n, d, []int{noFlush, logFlush}[round/stages%2])
		cancel()
		<-pulled
		look := func(when string) {
			if files, err := wrong(t, n, im); err != nil && listed(t, n, im.ref) || len(files) > 0 {
				t.Errorf("stage %d, %s: %d of %d files are wrong: %v %v", stage, when, len(files), len(im.files), files, err)
			}
		}
		if listed(t, n, im.ref) {
			look("after the cut")
		}
		verified(n, d)
		g.set(size + 1)
		if _, err := n.PullImage(t.Context(), pull); err != nil {
			t.Fatalf("stage %d: the next pull: %v", stage, err)
		}
		look("after the next pull")
		if t.Failed() {
			t.FailNow()
		}
		if _, err := n.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: im.ref}}); err != nil {
			t.Fatal(err)
		}
	}
}
