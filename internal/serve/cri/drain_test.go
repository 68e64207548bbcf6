// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
	"berth/internal/base/ops"
)

// quiet is a subscription to which nothing happens.
type quiet struct{}

func (quiet) Next(ctx context.Context) (*runtimeapi.ContainerEventResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (quiet) Close() {}

// handOver keeps a listener's socket as the service manager does: each server gets a copy.
func handOver(t *testing.T, path string) (next func() net.Listener) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return func() net.Listener {
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return l
	}
}

// A restart of berth cost the kubelet calls, and its event stream a try: it subscribed again on the
// connection that was about to end. Evented PLEG is given up after five tries.
func TestNobodyNoticesThatAServerIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	next := handOver(t, path)
	c, err := client.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var clients sync.WaitGroup
	calls := make(chan error, 4)
	for range 3 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if err := importing(ctx, c, "/a"); err != nil && ctx.Err() == nil {
					calls <- err
					return
				}
			}
		})
	}
	clients.Go(func() { // with a new connection for each call
		for ctx.Err() == nil {
			c, err := client.Dial(path)
			if err == nil {
				err = importing(ctx, c, "/a")
				_ = c.Close()
			}
			if err != nil && ctx.Err() == nil {
				calls <- fmt.Errorf("on a new connection: %w", err)
				return
			}
		}
	})
	const rounds = 20
	ends := make(chan error, rounds+1)
	clients.Go(func() {
		for ctx.Err() == nil {
			stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			if ctx.Err() == nil {
				ends <- err
			}
		}
	})
	var old *Server
	for range rounds {
		subscribed := make(chan struct{}, 10)
		s := NewServer(&Runtime{Subscribe: func() Events { subscribed <- struct{}{}; return quiet{} }}, &Image{}, slog.New(slog.DiscardHandler), &observed{}, &ops.List{})
		berthv1.RegisterControlServer(s, control{})
		served := make(chan error, 1)
		lis := next()
		if old != nil {
			old.Drain(time.Minute)
			if err := <-ends; status.Code(err) != codes.Unavailable {
				t.Errorf("the stream ended with %v", err)
			}
		}
		go func() { served <- s.Serve(lis) }()
		select {
		case <-subscribed:
		case err := <-calls:
			t.Fatalf("a call failed: %v", err)
		case err := <-ends:
			t.Fatalf("the stream did not come back on its first try: %v", err)
		}
		if old = s; len(served) > 0 {
			t.Fatal(<-served)
		}
	}
	cancel()
	old.Drain(time.Minute)
	clients.Wait()
	select {
	case err := <-calls:
		t.Errorf("a call failed: %v", err)
	default:
	}
}

// A call in flight ends by itself; one that does not is cut off.
func TestDrainWaitsForCallsWithinItsBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lis := handOver(t, path)()
	began, release := make(chan struct{}), make(chan struct{})
	s := NewServer(&Runtime{}, &Image{}, slog.New(slog.DiscardHandler), &observed{}, &ops.List{})
	berthv1.RegisterNodeServer(s, blocking{began: began, release: release})
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	c, err := client.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	finishes, hangs := make(chan error, 1), make(chan error, 1)
	go func() { _, err := c.Node.Lanes(t.Context(), &berthv1.LanesRequest{}); finishes <- err }()
	go func() { _, err := c.Node.Timeline(t.Context(), &berthv1.TimelineRequest{Id: "c1"}); hangs <- err }()
	<-began
	<-began
	drained := make(chan struct{})
	go func() { defer close(drained); s.Drain(time.Second) }()
	close(release)
	if err := <-finishes; err != nil {
		t.Errorf("the call in flight failed: %v", err)
	}
	if err := <-hangs; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Errorf("the call that hangs ended with %v", err)
	}
	<-drained
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// blocking is a service berth.v1.Node whose Lanes waits for its release, and whose Timeline waits
// for ever.
type blocking struct {
	berthv1.UnimplementedNodeServer
	began, release chan struct{}
}

func (b blocking) Lanes(context.Context, *berthv1.LanesRequest) (*berthv1.LanesResponse, error) {
	b.began <- struct{}{}
	<-b.release
	return &berthv1.LanesResponse{}, nil
}

func (b blocking) Timeline(ctx context.Context, _ *berthv1.TimelineRequest) (*berthv1.TimelineResponse, error) {
	b.began <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}
