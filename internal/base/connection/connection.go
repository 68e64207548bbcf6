// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/introspection"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// firstDial and slowestDial are the waits between two attempts to connect to the socket of
	// containerd.
	firstDial   = 50 * time.Millisecond
	slowestDial = time.Second
	// dialTimeout bounds one attempt, because a containerd that is stopped (SIGSTOP) accepts
	// connections without answering.
	dialTimeout = 10 * time.Second
)

// Connection is the way to a containerd that may not be there yet, or not be there any more. While
// there is none, every call is ErrUnavailable at once, with the reason. It is not an answer:
// nothing follows from it but that the call is to be repeated.
//
// Follow of package ctrd finds out whether containerd answers. Its methods may be called from any
// goroutine.
type Connection struct {
	// refuses is a client of which no call passes, for a client that has no gate of its own, as one in
	// memory. nil: it has one.
	refuses *containerd.Client

	mu     sync.Mutex
	client *containerd.Client
	why    error         // why no call passes; nil: they do
	there  chan struct{} // closed once there is something to ask
}

// Absent returns a connection to a containerd that is yet to be started. why is the error of calls
// until [Connection.Use].
func Absent(why error) *Connection {
	c := &Connection{why: why, there: make(chan struct{})}
	// It never dials: none of its calls passes.
	client, err := containerd.New("absent", c.gate(false)...)
	if err != nil {
		panic(fmt.Sprintf("a client that does not connect: %v", err)) // an option that cannot be
	}
	c.client, c.refuses = client, client
	return c
}

// Through returns a connection through a client that works, which the caller closes.
func Through(client *containerd.Client) *Connection {
	c := &Connection{client: client, there: make(chan struct{})}
	close(c.there)
	return c
}

// Dial returns a connection to a containerd that runs by itself, or will. It waits for nothing:
// calls pass once containerd has answered Follow of package ctrd. The caller closes it.
func Dial(address string) (*Connection, error) {
	address = strings.TrimPrefix(address, "unix://")
	c := &Connection{
		why:   fmt.Errorf("containerd at %s has not answered yet", address),
		there: make(chan struct{}),
	}
	client, err := containerd.New(address, c.gate(true)...)
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", address, err)
	}
	c.client = client
	close(c.there)
	return c, nil
}

// asking marks the context of the calls that find out whether containerd answers.
type asking struct{}

// Asking marks a context: calls pass with it also while the connection fails all others. The calls
// that find out whether containerd answers are made with it.
func Asking(ctx context.Context) context.Context { return context.WithValue(ctx, asking{}, true) }

// gate are the options of a client whose calls pass only while the connection is there, except, if
// probed is set, for those that find out whether it is.
func (c *Connection) gate(probed bool) []containerd.Opt {
	pass := func(ctx context.Context) error {
		if probed && ctx.Value(asking{}) != nil {
			return nil
		}
		if err := c.Err(); err != nil {
			// the form of containerd's own errors
			return status.Error(codes.Unavailable, err.Error())
		}
		return nil
	}
	return []containerd.Opt{
		containerd.WithDefaultNamespace(Namespace),
		containerd.WithExtraDialOpts([]grpc.DialOption{
			// containerd's own dialer waits silently for a socket that does not exist.
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
			}),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{
					BaseDelay:  firstDial,
					Multiplier: 2,
					Jitter:     0.2,
					MaxDelay:   slowestDial,
				},
				MinConnectTimeout: dialTimeout,
			}),
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if err := pass(ctx); err != nil {
					return err
				}
				return call(ctx, method, req, reply, conn, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if err := pass(ctx); err != nil {
					return nil, err
				}
				return open(ctx, desc, conn, method, opts...)
			}),
		}),
	}
}

// Use has calls go through a client from now on, which the caller closes. As with [Dial], they pass
// only once containerd has answered Follow of package ctrd, because it may be another containerd
// than the one that has the pods.
func (c *Connection) Use(client *containerd.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client, c.why = client, errors.New("containerd has not answered yet")
	close(c.there)
}

// Set lets calls pass, or has them fail with a reason.
func (c *Connection) Set(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why = why
}

// Err is nil while calls pass, and otherwise an ErrUnavailable with the reason.
func (c *Connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil || errdefs.IsUnavailable(c.why) {
		return c.why
	}
	return fmt.Errorf("%w: %w", c.why, errdefs.ErrUnavailable)
}

// Hurry has the client connect at once if it is between two attempts. The caller knows that
// containerd is about to be there, and waits for it.
func (c *Connection) Hurry() {
	if conn, ok := c.Asked().Conn().(*grpc.ClientConn); ok {
		conn.ResetConnectBackoff()
	}
}

// Close closes the client.
func (c *Connection) Close() error { return c.Asked().Close() }

// Wait returns once there is something to ask, or when ctx ends.
func (c *Connection) Wait(ctx context.Context) {
	select {
	case <-c.there:
	case <-ctx.Done():
	}
}

// Client returns the client that calls go through now. Do not keep it: it may be replaced.
func (c *Connection) Client() *containerd.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil && c.refuses != nil {
		return c.refuses
	}
	return c.client
}

// Asked returns the client for the calls that find out whether containerd answers, and which one it
// is: those pass in any case. They have the context of [Asking]. Do not keep it: it may be
// replaced.
func (c *Connection) Asked() *containerd.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client
}

// The following methods return services of the client that calls go through now. Do not keep them:
// they may be replaced.

// TaskService returns the service of tasks.
func (c *Connection) TaskService() tasks.TasksClient { return c.Client().TaskService() }

// ContainerService returns the store of container objects.
func (c *Connection) ContainerService() containers.Store { return c.Client().ContainerService() }

// SandboxStore returns the store of sandbox objects.
func (c *Connection) SandboxStore() sandbox.Store { return c.Client().SandboxStore() }

// SandboxController returns the sandbox controller of a name.
func (c *Connection) SandboxController(name string) sandbox.Controller {
	return c.Client().SandboxController(name)
}

// ContentStore returns the store of blobs.
func (c *Connection) ContentStore() content.Store { return c.Client().ContentStore() }

// ImageService returns the store of images.
func (c *Connection) ImageService() images.Store { return c.Client().ImageService() }

// SnapshotService returns the snapshotter of a name.
func (c *Connection) SnapshotService(name string) snapshots.Snapshotter {
	return c.Client().SnapshotService(name)
}

// LeasesService returns the manager of leases.
func (c *Connection) LeasesService() leases.Manager { return c.Client().LeasesService() }

// WithLease puts a new lease into the context. The caller calls the function when it is over.
func (c *Connection) WithLease(ctx context.Context, opts ...leases.Opt) (context.Context, func(context.Context) error, error) {
	return c.Client().WithLease(ctx, opts...)
}

// DiffService returns the service that packs and unpacks layers.
func (c *Connection) DiffService() containerd.DiffService { return c.Client().DiffService() }

// EventService returns the service of events.
func (c *Connection) EventService() containerd.EventService { return c.Client().EventService() }

// IntrospectionService returns the service that describes containerd's plug-ins.
func (c *Connection) IntrospectionService() introspection.Service {
	return c.Client().IntrospectionService()
}

// Version returns the version of containerd.
func (c *Connection) Version(ctx context.Context) (containerd.Version, error) {
	return c.Client().Version(ctx)
}

// SnapshotterCapabilities returns the declared capabilities of a snapshotter.
func (c *Connection) SnapshotterCapabilities(ctx context.Context, name string) ([]string, error) {
	capabilities, err := c.Client().GetSnapshotterCapabilities(Namespaced(ctx), name)
	if err != nil {
		return nil, fmt.Errorf("ask for capabilities of snapshotter %s: %w", name, Native(err))
	}
	return capabilities, nil
}

// SnapshotterRoot returns the directory of a snapshotter; "" if it is not exported.
func (c *Connection) SnapshotterRoot(ctx context.Context, name string) (string, error) {
	root, err := c.root(ctx, `type==io.containerd.snapshotter.v1,id==`+name)
	if err != nil {
		return "", fmt.Errorf("find directory of snapshotter %s: %w", name, err)
	}
	return root, nil
}

// ContentRoot returns the directory of the content store, whose blobs are the files
// blobs/ALGORITHM/DIGEST in it; "" if it is not exported.
func (c *Connection) ContentRoot(ctx context.Context) (string, error) {
	root, err := c.root(ctx, `type==io.containerd.content.v1,id==content`)
	if err != nil {
		return "", fmt.Errorf("find directory of the content store: %w", err)
	}
	return root, nil
}

// root returns the directory of the plugin that a filter selects; "" if it is not exported.
func (c *Connection) root(ctx context.Context, filter string) (string, error) {
	resp, err := c.IntrospectionService().Plugins(Namespaced(ctx), filter)
	if err != nil {
		return "", Native(err)
	}
	for _, p := range resp.Plugins {
		if root := p.Exports["root"]; root != "" {
			return filepath.Clean(root), nil
		}
	}
	return "", nil
}
