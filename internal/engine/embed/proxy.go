// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"path"
	"slices"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Proxy is a snapshotter that is a program of its own, which comes and goes by itself.
type Proxy struct {
	Address string // its Unix socket
	Root    string // the directory of its layers; "" if that is not known
}

const (
	// proxyTimeout bounds a call to a snapshotter of another program. containerd bounds none, and
	// its garbage collection, which waits for the removal of layers, would stand still for ever.
	proxyTimeout = 5 * time.Minute
	// lockedTimeout bounds the two calls that containerd makes within a transaction: no other pod's
	// container can be made or deleted meanwhile. Each changes a record alone.
	lockedTimeout = 5 * time.Second
)

// registration returns the part that calls the snapshotter. It is not in containerd's registry,
// which is one for the process and cannot forget. The start does not wait for the snapshotter:
// while it is away, calls fail at once.
func (p Proxy) registration(name string) plugin.Registration {
	return plugin.Registration{
		Type: plugins.SnapshotPlugin,
		ID:   name,
		InitFn: func(ic *plugin.InitContext) (any, error) {
			ic.Meta.Platforms = append(ic.Meta.Platforms, platforms.DefaultSpec())
			ic.Meta.Exports["address"] = p.Address
			if p.Root != "" {
				ic.Meta.Exports[plugins.SnapshotterRootDir] = p.Root
			}
			conn, err := grpc.NewClient("unix://"+p.Address,
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				// One that has come back is used within a second.
				grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}}),
				grpc.WithUnaryInterceptor(p.call),
				grpc.WithStreamInterceptor(p.stream))
			if err != nil {
				return nil, err
			}
			return &remote{proxy.NewSnapshotter(snapshotsapi.NewSnapshotsClient(conn), name), conn}, nil
		},
	}
}

// call makes a call with a deadline.
func (p Proxy) call(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	timeout := proxyTimeout
	if slices.Contains([]string{"Commit", "Update"}, path.Base(method)) {
		timeout = lockedTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return p.named(call(ctx, method, req, reply, conn, opts...))
}

// stream makes a call with a deadline that is answered in parts.
func (p Proxy) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	s, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		cancel()
		return nil, p.named(err)
	}
	context.AfterFunc(s.Context(), cancel)
	return s, nil
}

// named adds to the error of a snapshotter that is away, or hangs, which one it is.
func (p Proxy) named(err error) error {
	if s := status.Convert(err); s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded {
		return status.Errorf(s.Code(), "the snapshotter at %s: %s", p.Address, s.Message())
	}
	return err
}

// remote is a snapshotter of another program, with the connection to it.
type remote struct {
	snapshots.Snapshotter
	conn *grpc.ClientConn
}

// Cleanup has the snapshotter remove directories that it has no record of.
func (r *remote) Cleanup(ctx context.Context) error {
	if c, ok := r.Snapshotter.(snapshots.Cleaner); ok {
		return c.Cleanup(ctx)
	}
	return errdefs.ErrNotImplemented
}

// Close closes the connection. The snapshotter and its mounts live on.
func (r *remote) Close() error { return r.conn.Close() }
