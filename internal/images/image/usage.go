// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/retry"
)

const (
	usageInterval = 30 * time.Second
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

// sample measures usage until ctx ends.
func (s *Service) sample(ctx context.Context) {
	for range retry.Doubling(ctx.Done(), firstUsage, slowestUsage) {
		if s.measure(ctx); s.isMeasured() {
			break
		}
	}
	for retry.Sleep(ctx.Done(), usageInterval) {
		s.measure(ctx)
	}
}

func (s *Service) isMeasured() bool {
	select {
	case <-s.measured:
		return true
	default:
		return false
	}
}

func (s *Service) measure(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, usageBudget)
	defer cancel()
	u, err := s.backend.Usage(within)
	if err != nil {
		if ctx.Err() == nil && !errdefs.IsUnavailable(err) { // that containerd is away is said elsewhere
			s.cfg.Logger.Warn("what images use cannot be measured", "err", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isMeasured() {
		close(s.measured)
	}
	s.mu.usage = u
}

// Measured returns the last measurement; ok is false before the first.
func (s *Service) Measured() (u Usage, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.usage, s.isMeasured()
}

// Mountpoint returns the directory that images are in, or "" before anything was measured.
func (s *Service) Mountpoint() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.usage.Path
}

// FsInfo returns the last measurement. Shortly after the start it waits a little for the first
// measurement. If there is none, because containerd is away, the answer names no file system: an
// error would keep a kubelet from starting, which asks this to find out whether somebody answers.
func (s *Service) FsInfo(ctx context.Context) *runtimeapi.ImageFsInfoResponse {
	ctx, cancel := context.WithTimeout(ctx, usagePatience)
	defer cancel()
	select {
	case <-s.measured:
	case <-ctx.Done():
		return &runtimeapi.ImageFsInfoResponse{}
	}
	s.mu.RLock()
	u := s.mu.usage
	s.mu.RUnlock()
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
