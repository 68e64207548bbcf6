// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"berth/internal/images/image"
	"berth/test/testimage"
	"berth/test/testimage/testregistry"
)

// BenchmarkPull pulls an image of five layers, of which nothing is there, from a registry in this
// process. Meanwhile a goroutine sleeps in the kernel, as those do that wait for the end of a
// process or for the disk: late is how much later than asked for it goes on.
func BenchmarkPull(b *testing.B) {
	i, _ := parallelStore(b)
	ref := testregistry.Start(b).Push("layers:1", largeImage(b))
	var pulling atomic.Bool
	stop, late := make(chan struct{}), make(chan []float64)
	go func() {
		var all []float64
		for {
			select {
			case <-stop:
				late <- all
				return
			default:
			}
			began, during := time.Now(), pulling.Load()
			for range 3 {
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
			}
			if during && pulling.Load() {
				all = append(all, float64(time.Since(began)-3*time.Millisecond)/1e6)
			}
		}
	}()
	for b.Loop() {
		pulling.Store(true)
		st, err := i.Pull(b.Context(), ref, image.Credentials{}, "", nil)
		if err != nil {
			b.Fatal(err)
		}
		pulling.Store(false)
		b.StopTimer()
		for _, n := range st.NamesGiven() {
			if err := i.Delete(b.Context(), n); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
	close(stop)
	all := <-late
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "late-p50-ms")
	b.ReportMetric(all[len(all)*99/100], "late-p99-ms")
}

// largeImage returns an image of five layers with 40 MiB of files each.
func largeImage(b *testing.B) v1.Image {
	random := rand.NewChaCha8([32]byte{})
	var layers []v1.Layer
	for n := range 5 {
		var files []testimage.File
		for f := range 640 {
			var body []byte
			for len(body) < 64<<10 {
				r := random.Uint64()
				body = binary.LittleEndian.AppendUint64(fmt.Appendf(body, "word%04d", r%1000), r)
			}
			files = append(files, testimage.File{Name: fmt.Sprintf("layer%d-%d", n, f), Mode: 0o644, Body: body})
		}
		layer, err := testimage.Layer(files...)
		if err != nil {
			b.Fatal(err)
		}
		layers = append(layers, layer)
	}
	img, err := testimage.Image(v1Config(), layers...)
	if err != nil {
		b.Fatal(err)
	}
	return img
}
