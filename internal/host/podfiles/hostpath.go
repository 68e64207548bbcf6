// SPDX-License-Identifier: Apache-2.0

package podfiles

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// maxHostPaths is how many host paths may be looked at at the same time. Each whose file system
// does not answer holds a thread of berth's for as long.
const maxHostPaths = 256

// hostPaths looks at the host paths of mounts. A path on a file system that hangs, such as NFS
// whose server is away, or FUSE, may never answer, and the system call cannot be ended: so each
// path is examined once at a time, and concurrent callers share the call.
type hostPaths struct {
	ask func(path string) error

	mu       sync.Mutex
	inFlight map[string]*look
}

// look is one look at a path.
type look struct {
	since time.Time
	done  chan struct{}
	err   error // valid once done is closed
}

func newHostPaths(ask func(path string) error) *hostPaths {
	return &hostPaths{ask: ask, inFlight: map[string]*look{}}
}

// MakeHostPath makes the host directory of a mount if nothing is there, as the kubelet and users of
// crictl expect. A path that is not absolute is left to the validation of the spec. If no directory
// can be the error is ErrFailedPrecondition. If the file system of the path does not answer within
// ctx, the error names the path; concurrent calls for a path share one look at it.
func (f *Files) MakeHostPath(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		return nil
	}
	l, err := f.paths.begin(path)
	if err != nil {
		return fmt.Errorf("make host_path: %w", err)
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		return fmt.Errorf("make host_path %s: its file system has not answered for %s; see whether its server, or its FUSE daemon, is there: %w",
			path, time.Since(l.since).Round(time.Second), ctx.Err())
	}
	if l.err != nil {
		return fmt.Errorf("make host_path: %w: %w", l.err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// begin begins to look at a path, or joins a look that is in flight.
func (p *hostPaths) begin(path string) (*look, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.inFlight[path]; l != nil {
		return l, nil
	}
	if len(p.inFlight) >= maxHostPaths {
		return nil, fmt.Errorf("%s: %d paths do not answer already: %w", path, maxHostPaths, errdefs.ErrUnavailable)
	}
	l := &look{since: time.Now(), done: make(chan struct{})}
	p.inFlight[path] = l
	go func() {
		l.err = p.ask(path)
		p.mu.Lock()
		delete(p.inFlight, path)
		p.mu.Unlock()
		close(l.done)
	}()
	return l, nil
}

// makeDirectory makes a directory unless something is there.
func makeDirectory(path string) error {
	_, err := os.Stat(path)
	if os.IsNotExist(err) {
		err = os.MkdirAll(path, 0o755) // as the kubelet makes it
	}
	return err
}
