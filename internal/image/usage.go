// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	usageInterval = 30 * time.Second
	// firstUsage is the wait as long as nothing was measured.
	firstUsage = time.Second
	// usageBudget is how long one measurement may take. The writable layers of containers are
	// walked file by file, and how many files there are is up to the containers.
	usageBudget = 5 * time.Second
)

// Usage is what is used of the file system that images are on.
type Usage struct {
	Path       string
	Images     Space // the layers of images
	Containers Space // the writable layers of containers
	At         time.Time
}

// Space is what something uses of a file system.
type Space struct{ Bytes, Inodes uint64 }

// sample measures usage until ctx ends.
func (s *Service) sample(ctx context.Context) {
	for {
		wait := usageInterval
		if s.measure(ctx); !s.measured() {
			wait = firstUsage
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

func (s *Service) measured() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return !s.mu.usage.At.IsZero()
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
	s.mu.usage = u
}

// FsInfo returns what was measured last; ErrUnavailable before anything was.
func (s *Service) FsInfo() (*runtimeapi.ImageFsInfoResponse, error) {
	s.mu.RLock()
	u := s.mu.usage
	s.mu.RUnlock()
	if u.At.IsZero() {
		return nil, fmt.Errorf("what images use was not measured yet: %w", errdefs.ErrUnavailable)
	}
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
	}, nil
}
