// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// Namespace is the containerd namespace of everything that berth makes.
const Namespace = "k8s.io"

// LabelOwner marks what this berth made: its value is the berth's own ID, so that several can share one
// containerd.
const LabelOwner = "io.berth.owner"

// Client is containerd's, so that who plugs it in need not import it.
type Client = containerd.Client

// Containerd is the adapter. Its methods may be called from any goroutine.
type Containerd struct {
	client      *containerd.Client
	owner       string
	snapshotter string
	log         *slog.Logger
}

// New wraps a client; the caller closes it. owner is this berth's ID, snapshotter the one that new containers get.
func New(client *containerd.Client, owner, snapshotter string, log *slog.Logger) *Containerd {
	return &Containerd{client: client, owner: owner, snapshotter: snapshotter, log: log}
}

// Dial connects to a containerd that runs already.
func Dial(address string) (*containerd.Client, error) {
	c, err := containerd.New(address, containerd.WithDefaultNamespace(Namespace))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w: is it running?", address, err)
	}
	return c, nil
}

// Version is containerd's.
func (c *Containerd) Version(ctx context.Context) (string, error) {
	v, err := c.client.Version(ns(ctx))
	return v.Version, native(err)
}

// ns puts the namespace into the context: services in memory look nowhere else.
func ns(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, Namespace) }

// native translates an error to errdefs' sentinels.
func native(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, known := range []error{errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrInvalidArgument, errdefs.ErrFailedPrecondition, errdefs.ErrUnavailable} {
		if errors.Is(err, known) {
			return err // a service in memory
		}
	}
	return errgrpc.ToNative(err)
}
