// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/retry"
)

const (
	usageInterval = 30 * time.Second
	// askedFor is how long after a call another one is expected; while none is, usage is measured
	// every restInterval. A kubelet asks every ten seconds.
	askedFor     = time.Minute
	restInterval = 5 * time.Minute
	// firstUsage and slowestUsage are the waits as long as nothing could be measured.
	firstUsage   = 20 * time.Millisecond
	slowestUsage = time.Second
	// usagePatience is how long a client waits for the first measurement.
	usagePatience = time.Second
	// usageBudget is how long one measurement may take. The writable layers of containers are
	// walked file by file, and how many files there are is up to the containers.
	usageBudget = 5 * time.Second
)

// Usage is the use of the file system that images are on.
type Usage struct {
	Path       string
	Images     Space // the layers of images
	Containers Space // the writable layers of containers
	Blobs      int64 // bytes of manifests, configurations and compressed layers
	At         time.Time
}

// Space is a number of bytes and inodes of a file system.
type Space struct{ Bytes, Inodes uint64 }

// meter measures the use of the file system that images are on, and remembers it.
type meter struct {
	reader Reader
	log    *slog.Logger
	first  chan struct{} // closed once usage was measured

	mu    sync.RWMutex
	usage Usage
	asked time.Time // when a client has asked last
}

// sample measures usage until ctx ends.
func (m *meter) sample(ctx context.Context) {
	for range retry.Doubling(ctx.Done(), firstUsage, slowestUsage) {
		if m.measure(ctx); m.isMeasured() {
			break
		}
	}
	for last := time.Now(); retry.Sleep(ctx.Done(), usageInterval); {
		if m.isAsked() || time.Since(last) >= restInterval {
			last = time.Now()
			m.measure(ctx)
		}
	}
}

// isAsked reports whether a client is expected to ask.
func (m *meter) isAsked() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return time.Since(m.asked) < askedFor
}

func (m *meter) isMeasured() bool {
	select {
	case <-m.first:
		return true
	default:
		return false
	}
}

func (m *meter) measure(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, usageBudget)
	defer cancel()
	u, err := m.reader.Usage(within)
	if err != nil {
		if ctx.Err() == nil && !errdefs.IsUnavailable(err) { // that containerd is away is said elsewhere
			m.log.Warn("what images use cannot be measured", "err", err)
		}
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.isMeasured() {
		close(m.first)
	}
	m.usage = u
}

// Measured returns the last measurement; ok is false before the first.
func (m *meter) Measured() (u Usage, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = time.Now()
	return m.usage, m.isMeasured()
}

// Mountpoint returns the directory that images are in, or "" before anything was measured.
func (m *meter) Mountpoint() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.usage.Path
}

// FsInfo returns the last measurement. Shortly after the start it waits a little for the first
// measurement. If there is none, because containerd is away, the answer names no file system: an
// error would keep a kubelet from starting, which asks this to find out whether somebody answers.
func (m *meter) FsInfo(ctx context.Context) *runtimeapi.ImageFsInfoResponse {
	ctx, cancel := context.WithTimeout(ctx, usagePatience)
	defer cancel()
	select {
	case <-m.first:
	case <-ctx.Done():
		return &runtimeapi.ImageFsInfoResponse{}
	}
	u, _ := m.Measured()
	of := func(used Space) []*runtimeapi.FilesystemUsage {
		return []*runtimeapi.FilesystemUsage{{
			Timestamp:  u.At.UnixNano(),
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: u.Path},
			UsedBytes:  &runtimeapi.UInt64Value{Value: used.Bytes},
			InodesUsed: &runtimeapi.UInt64Value{Value: used.Inodes},
		}}
	}
	return &runtimeapi.ImageFsInfoResponse{
		ImageFilesystems:     of(u.Images),
		ContainerFilesystems: of(u.Containers),
	}
}
