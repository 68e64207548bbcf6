// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/testimage"
)

// wire is how a registry sends blobs.
type wire struct {
	rate    int64         // bytes a second that each connection gets; 0: as many as it can
	latency time.Duration // of each answer
	resets  int64         // bytes after which a connection is cut; 0: never
}

// wirePull is a pull that is measured.
type wirePull struct {
	name  string
	image string
	wire
	together int // images that are pulled at once; IMAGE:1 to IMAGE:N
}

const smallImages = 30

func wirePulls() (all []wirePull) {
	for _, c := range []string{"gzip", "zstd"} {
		all = append(all,
			wirePull{"PullLarge100MBs/" + c, "large-" + c, wire{rate: 100e6, latency: 5 * time.Millisecond}, 1},
			wirePull{"PullSixLayers/" + c, "six-" + c, wire{}, 1},
			wirePull{"PullManyFiles/" + c, "files-" + c, wire{}, 1})
	}
	return append(all,
		wirePull{"PullLargeResets/gzip", "large-gzip", wire{rate: 100e6, resets: 50 << 20}, 1},
		wirePull{"PullSmallAtOnce/gzip", "small", wire{latency: 20 * time.Millisecond}, smallImages})
}

// wireRegistry serves images as a wire does, which may be changed between two pulls.
type wireRegistry struct {
	store http.Handler
	blobs map[string][]byte // by digest: layers, of which it sends parts
	now   atomic.Pointer[wire]
	sent  atomic.Int64
}

// ServeHTTP sends a blob, or a part of it.
func (r *wireRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	b, ok := r.blobs[path.Base(req.URL.Path)]
	if !ok || req.Method != http.MethodGet && req.Method != http.MethodHead {
		r.store.ServeHTTP(w, req)
		return
	}
	time.Sleep(r.now.Load().latency)
	w.Header().Set("Docker-Content-Digest", path.Base(req.URL.Path))
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(b))
}

// wireListener gives each connection the bytes per second that the registry has for one.
type wireListener struct {
	net.Listener
	of *wireRegistry
}

// Accept accepts a connection.
func (l wireListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(256 << 10) // what is in buffers was not sent
	}
	return &wireConn{Conn: c, of: l.of}, err
}

type wireConn struct {
	net.Conn
	of    *wireRegistry
	sent  int64
	since time.Time // when it would have sent all of it at its rate
}

// Write sends bytes at the rate of a connection.
func (c *wireConn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		now := c.of.now.Load()
		if now.resets > 0 && c.sent > now.resets {
			return n, errors.Join(net.ErrClosed, c.Close())
		}
		if late := time.Since(c.since); late > 100*time.Millisecond {
			c.since = time.Now()
		} else if now.rate > 0 {
			time.Sleep(-late)
		}
		var m int
		m, err = c.Conn.Write(p[n:min(n+64<<10, len(p))])
		n += m
		c.sent += int64(m)
		c.of.sent.Add(int64(m))
		if now.rate > 0 {
			c.since = c.since.Add(time.Duration(int64(m) * int64(time.Second) / now.rate))
		}
	}
	return n, err
}

// serveWire serves the images of wirePulls, whose large layer has that many MiB, beside those that
// every node pulls.
func serveWire(build string, mib int) (r *wireRegistry, address string, stop func(), err error) {
	inner, stopInner, err := serveImages(build, 1)
	if err != nil {
		return nil, "", nil, err
	}
	defer stopInner() // its images are copied below
	r = &wireRegistry{store: registry.New(registry.Logger(log.New(io.Discard, "", 0))), blobs: map[string][]byte{}}
	r.now.Store(&wire{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, err
	}
	s := &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	limited := wireListener{lis, r}
	go func() { defer close(served); _ = s.Serve(limited) }()
	stop = func() { _ = s.Close(); <-served }
	address = lis.Addr().String()
	push := func(repository string, img v1.Image) error {
		tag, err := name.NewTag(address+"/"+repository, name.StrictValidation, name.Insecure)
		if err != nil {
			return err
		}
		if err := remote.Write(tag, img); err != nil {
			return fmt.Errorf("serve image %s: %w", repository, err)
		}
		config, err := img.ConfigName()
		if err == nil {
			r.blobs[config.String()], err = img.RawConfigFile()
		}
		if err != nil {
			return err
		}
		layers, err := img.Layers()
		for _, l := range layers {
			d, err := l.Digest()
			if err != nil {
				return err
			}
			rc, err := l.Compressed()
			if err != nil {
				return err
			}
			b, err := io.ReadAll(rc)
			if err := errors.Join(err, rc.Close()); err != nil {
				return err
			}
			r.blobs[d.String()] = b
		}
		return err
	}
	for _, repository := range []string{"busybox:1", "pause:1"} {
		tag, err := name.NewTag(inner+"/"+repository, name.StrictValidation, name.Insecure)
		var img v1.Image
		if err == nil {
			img, err = remote.Image(tag)
		}
		if err == nil {
			err = push(repository, img)
		}
		if err != nil {
			return nil, "", stop, err
		}
	}
	return r, address, stop, wireImages(mib, push)
}

// wireImages makes the images: a model in one layer, six layers of 100 MiB or less, and 36,000
// small files.
func wireImages(mib int, push func(repository string, img v1.Image) error) error {
	random := rand.NewChaCha8([32]byte{})
	body := func(size int) []byte { // a half of it cannot be compressed
		b := make([]byte, size)
		for at := 0; at < size; at += 8 << 10 {
			_, _ = random.Read(b[at:min(at+4<<10, size)])
		}
		return b
	}
	large := []testimage.File{{Name: "model", Mode: 0o644, Body: body(mib << 20)}}
	var six [][]testimage.File
	for l := range 6 {
		dir := fmt.Sprintf("layer%d", l)
		list := []testimage.File{{Name: dir, Mode: fs.ModeDir | 0o755}}
		for f := range min(mib, 100) {
			list = append(list, testimage.File{Name: fmt.Sprintf("%s/%d", dir, f), Mode: 0o644, Body: body(1 << 20)})
		}
		six = append(six, list)
	}
	var files []testimage.File
	for d := range 360 {
		dir := fmt.Sprintf("d%d", d)
		files = append(files, testimage.File{Name: dir, Mode: fs.ModeDir | 0o755})
		for f := range 100 {
			files = append(files, testimage.File{Name: fmt.Sprintf("%s/%d", dir, f), Mode: 0o644, Body: body(3000)})
		}
	}
	for _, c := range []string{"gzip", "zstd"} {
		for repository, layers := range map[string][][]testimage.File{"large-": {large}, "six-": six, "files-": {files}} {
			if err := pushLayers(push, repository+c+":1", c == "zstd", layers...); err != nil {
				return err
			}
		}
	}
	for n := range smallImages {
		if err := pushLayers(push, fmt.Sprintf("small:%d", n+1), false, []testimage.File{{Name: "f", Mode: 0o644, Body: body(5 << 20)}}); err != nil {
			return err
		}
	}
	return nil
}

func pushLayers(push func(string, v1.Image) error, repository string, zstd bool, layers ...[]testimage.File) error {
	var made []v1.Layer
	for _, files := range layers {
		l, err := testimage.Layer(files...)
		if err == nil && zstd {
			l, err = tarball.LayerFromOpener(l.Uncompressed, tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd))
		}
		if err != nil {
			return err
		}
		made = append(made, l)
	}
	img, err := testimage.Image(v1.Config{Cmd: []string{"/none"}}, made...)
	if err != nil {
		return err
	}
	return push(repository, img)
}

// containerdPieces is containerd with the concurrent fetch of layers on, in pieces of the size and
// the number that berth has.
var containerdPieces = kind{name: "containerd", shim: "containerd-shim", prepare: func(n *node) ([]string, error) {
	command, err := prepareContainerd(n)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(n.dir, "containerd.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString("[plugins.'io.containerd.transfer.v1.local']\nconcurrent_layer_fetch_buffer = 8388608\nmax_concurrent_downloads = 6\nmax_concurrent_unpacks = 3\n")
	return command, errors.Join(err, f.Close())
}}

// runPulls measures pulls by turns, from a registry that bounds each connection.
func (b *bench) runPulls(ctx context.Context, mib int) error {
	r, address, stop, err := serveWire(b.build, mib)
	if stop != nil {
		defer stop()
	}
	if err != nil {
		return err
	}
	b.registry = address
	var ways []way
	for _, k := range b.kinds {
		ways = append(ways, way{k, k.name})
	}
	ways = append(ways, way{containerdPieces, "containerd-pieces"})
	b.out.printf("# large layer: %d MiB\n", mib)
	only := b.only
	b.only = ""
	return b.byTurns(ctx, ways, "daemon", step{"pulls", func(ctx context.Context, n *node, rec record) error {
		for _, p := range wirePulls() {
			if !strings.Contains(p.name, only) {
				continue
			}
			r.now.Store(&p.wire)
			if err := n.wirePull(ctx, p, r, rec); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		return nil
	}, false})
}

// wirePull measures one pull: its time, the processor time of the daemon and all that it starts,
// and the most memory that these had together. The bytes that were sent, unpacked and stored so far
// are comments, of which pulls.svg is a picture.
func (n *node) wirePull(ctx context.Context, p wirePull, r *wireRegistry, rec record) error {
	unix.Sync() // writes of earlier steps are not part of the pull
	time.Sleep(time.Second)
	before, err := n.account.used()
	if err != nil {
		return err
	}
	sent, began := r.sent.Load(), time.Now()
	done := make(chan int64)
	watching, stop := context.WithCancel(ctx)
	go func() {
		var most int64
		for tick := time.NewTicker(100 * time.Millisecond); watching.Err() == nil; {
			select {
			case <-tick.C:
			case <-watching.Done():
			}
			most = max(most, n.memory())
			if strings.HasPrefix(p.image, "large") { // few files, which are quickly counted
				files, blobs := n.stored()
				rec.printf("# series %s%s %d %d %d %d\n", p.name, rec.of, time.Since(began).Milliseconds(), r.sent.Load()-sent, files, blobs)
			}
		}
		done <- most
	}()
	refs := make([]string, p.together)
	for i := range refs {
		refs[i] = fmt.Sprintf("%s/%s:%d", imageHost, p.image, i+1)
	}
	err = parallel(p.together, refs, func(_ int, ref string) error {
		_, err := n.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		return about("pull", ref, err)
	})
	took := time.Since(began)
	stop()
	most := <-done
	after, used := n.account.used()
	if err := errors.Join(err, used); err != nil {
		return err
	}
	rec.line(p.name, took, "ns/op", after-before, "cpu-ns/op", most, "peak-pss-B", r.sent.Load()-sent, "wire-B")
	for _, ref := range refs {
		if _, err := n.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			return about("remove image", ref, err)
		}
	}
	return nil
}

// memory is the proportional memory of the daemon and all that it has started, in bytes.
func (n *node) memory() (sum int64) {
	b, _ := os.ReadFile(filepath.Join(n.account.dir, "cgroup.procs"))
	for line := range strings.Lines(string(b)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			pss, _, _ := readMemory(pid) // one that has ended has none
			sum += int64(pss)
		}
	}
	return sum
}

// stored returns how many bytes of files and of blobs are in the daemon's directory.
func (n *node) stored() (files, blobs int64) {
	_ = filepath.WalkDir(n.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil //nolint:nilerr // files come and go
		}
		st, err := e.Info()
		switch {
		case err != nil:
		case strings.Contains(path, "/snapshots/"):
			files += st.Size()
		case strings.Contains(path, "content.v1.content"):
			blobs += st.Size()
		}
		return nil
	})
	return files, blobs
}
