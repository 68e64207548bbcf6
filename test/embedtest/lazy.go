// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
)

// Lazy is a snapshotter of another program, as stargz-snapshotter is: it has the files of some
// layers from elsewhere, and says so when it is asked to prepare such a layer.
type Lazy struct {
	snapshots.Snapshotter
	Address string
	server  *grpc.Server

	mu    sync.Mutex
	has   map[string]func(root string) error // by the digests of the layers
	asked []map[string]string                // the labels of each layer that was prepared
	hangs chan chan struct{}                 // gets each commit that hangs, which goes on once it is closed; nil: none does
}

// NewLazy makes one that is not serving yet, and is stopped after the test.
func NewLazy(t testing.TB) *Lazy {
	t.Helper()
	dir := SocketDir(t)
	sn, err := overlay.NewSnapshotter(filepath.Join(t.TempDir(), "lazy"))
	if err != nil {
		t.Fatal(err)
	}
	l := &Lazy{Snapshotter: sn, Address: filepath.Join(dir, "lazy.sock"), has: map[string]func(string) error{}}
	t.Cleanup(func() {
		l.Stop()
		sn.Close()
	})
	return l
}

// Serve has the snapshotter answer until Stop. It may be called again after that.
func (l *Lazy) Serve(t testing.TB) {
	t.Helper()
	if err := os.Remove(l.Address); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	in, err := net.Listen("unix", l.Address)
	if err != nil {
		t.Fatal(err)
	}
	l.server = grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(l.server, snapshotservice.FromSnapshotter(l))
	go func() { _ = l.server.Serve(in) }() // until Stop
}

// Stop ends Serve as a kill does.
func (l *Lazy) Stop() {
	if l.server != nil {
		l.server.Stop()
	}
}

// Has gives it the files of a layer, which it makes in a directory.
func (l *Lazy) Has(layer string, files func(root string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.has[layer] = files
}

// Asked returns the labels of each layer that it was asked to prepare.
func (l *Lazy) Asked() []map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// Hang has each commit hang. It is sent to the returned channel as it begins, and ends once the
// test closes it.
func (l *Lazy) Hang() <-chan chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangs = make(chan chan struct{})
	return l.hangs
}

// Commit implements [snapshots.Snapshotter].
func (l *Lazy) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	l.mu.Lock()
	hangs := l.hangs
	l.mu.Unlock()
	if hangs != nil {
		held := make(chan struct{})
		hangs <- held
		<-held
	}
	return l.Snapshotter.Commit(ctx, name, key, opts...)
}

// Prepare implements [snapshots.Snapshotter].
func (l *Lazy) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	var info snapshots.Info
	for _, o := range opts {
		if err := o(&info); err != nil {
			return nil, err
		}
	}
	ref := info.Labels[snapshots.LabelSnapshotRef]
	l.mu.Lock()
	files := l.has[info.Labels[snapshotters.TargetLayerDigestLabel]]
	if ref != "" {
		l.asked = append(l.asked, info.Labels)
	}
	l.mu.Unlock()
	ms, err := l.Snapshotter.Prepare(ctx, key, parent, opts...)
	if err != nil || ref == "" || files == nil {
		return ms, err
	}
	if err := mount.WithTempMount(ctx, ms, files); err != nil {
		return nil, err
	}
	if err := l.Commit(ctx, ref, key, opts...); err != nil {
		return nil, err
	}
	return nil, errdefs.ErrAlreadyExists
}
