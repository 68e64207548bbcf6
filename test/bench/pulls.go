// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/testimage"
)

const (
	layered    = imageHost + "/layered:1" // the image whose pull is measured
	layerCount = 5
)

// layeredImage returns an image with that many MiB of files in layerCount layers. Like most images
// it has many small files and a few large ones, and they compress to about half. The content is the
// same in each run.
func layeredImage(mib int) (v1.Image, error) {
	const large, small = 1 << 20, 16 << 10
	random := rand.NewChaCha8([32]byte{})
	var layers []v1.Layer
	for i := range layerCount {
		dir := fmt.Sprintf("layer%d", i)
		files := []testimage.File{{Name: dir, Mode: fs.ModeDir | 0o755}}
		for left := mib << 20 / layerCount; left > 0; {
			size := small
			if len(files)%64 == 0 {
				size = large
			}
			size = min(size, left)
			left -= size
			files = append(files, testimage.File{Name: fmt.Sprintf("%s/f%d", dir, len(files)), Mode: 0o644, Body: compressible(random, size)})
		}
		layer, err := testimage.Layer(files...)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	return testimage.Image(v1.Config{Cmd: []string{"/none"}}, layers...)
}

// compressible returns random words of a small vocabulary, each followed by the same number of
// random bytes.
func compressible(random *rand.ChaCha8, size int) []byte {
	b := make([]byte, 0, size+16)
	for len(b) < size {
		r := random.Uint64()
		b = fmt.Appendf(b, "word%04d", r%1000)
		b = binary.LittleEndian.AppendUint64(b, random.Uint64())
	}
	return b[:size]
}

// blobBytes is how many bytes of blobs the registry has served.
var blobBytes atomic.Int64

// counted adds the bytes that a handler writes to blobBytes.
func counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(countedWriter{w}, r) })
}

type countedWriter struct{ http.ResponseWriter }

// Write counts and writes.
func (w countedWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	blobBytes.Add(int64(n))
	return n, err
}

// pulls measures how long it takes until an image of which nothing is on the node is pulled, count
// times.
func (n *node) pulls(ctx context.Context, count, mib int, rec record) error {
	for range count {
		unix.Sync() // writes of earlier steps are not part of the pull
		time.Sleep(time.Second)
		served := blobBytes.Load()
		if err := n.timed(rec, "PullImage", func() error { return n.fetch(ctx) }); err != nil {
			return err
		}
		if got := blobBytes.Load() - served; got < int64(mib)<<20/4 {
			return fmt.Errorf("pull %s: the registry served %d bytes: parts were on the node before", layered, got)
		}
		if err := n.discard(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) fetch(ctx context.Context) error {
	_, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: layered}})
	return about("pull", layered, err)
}

func (n *node) discard(ctx context.Context) error {
	_, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: layered}})
	return about("remove image", layered, err)
}

// exitsWhilePulling kills the containers of one pod one after the other, each while an image is
// pulled.
func (n *node) exitsWhilePulling(ctx context.Context, count int, rec record) error {
	return n.whilePulling(ctx, func(ctx context.Context, pulling func() bool) error {
		return n.exits(ctx, count, killWhilePulling, rec, func(victim) error {
			for !pulling() && ctx.Err() == nil {
				time.Sleep(idlePause)
			}
			return context.Cause(ctx)
		}, n.exited)
	})
}

// whilePulling calls f while the image is pulled and removed over and over. pulling reports which
// of the two is in progress.
func (n *node) whilePulling(ctx context.Context, f func(ctx context.Context, pulling func() bool) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var pulling, enough atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !enough.Load() && ctx.Err() == nil {
			pulling.Store(true)
			err := n.fetch(ctx)
			pulling.Store(false)
			if err == nil {
				err = n.discard(ctx)
			}
			if err != nil {
				cancel(err)
			}
		}
	}()
	defer func() { enough.Store(true); <-done; cancel(nil) }()
	err := f(ctx, pulling.Load)
	return errors.Join(err, context.Cause(ctx))
}
