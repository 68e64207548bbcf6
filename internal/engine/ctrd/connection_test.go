// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	introspectionapi "github.com/containerd/containerd/api/services/introspection/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/base/connection"
	"berth/internal/engine/shims"
)

// answering is a containerd that says that it is there, whose events never come, and nothing else.
type answering struct {
	introspectionapi.UnimplementedIntrospectionServer
	eventsapi.UnimplementedEventsServer
	versionapi.UnimplementedVersionServer
	version string
}

func (a answering) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: a.version}, nil
}

func (answering) Subscribe(_ *eventsapi.SubscribeRequest, s eventsapi.Events_SubscribeServer) error {
	<-s.Context().Done()
	return nil
}

func (answering) Server(context.Context, *emptypb.Empty) (*introspectionapi.ServerResponse, error) {
	return &introspectionapi.ServerResponse{}, nil
}

// PROPERTIES 34: a call to a containerd that is not there yet, or not there any more, is an error
// at once that says why, and never an answer. It passes once containerd has answered.
func TestAConnectionRefusesUntilContainerdAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	conn, err := connection.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	c := New(conn, Config{Owner: "o", Snapshotter: "s", Shims: shims.New(shims.Config{Logger: log}), Logger: log})
	refused := func(what string) {
		t.Helper()
		err := c.DeleteContainer(t.Context(), "c1")
		if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("it is not there, and a call says %v, not %q", err, what)
		}
	}
	refused("has not answered yet")

	lost, connected := make(chan error), make(chan context.Context)
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() {
		followed <- c.Follow(ctx, Listener{
			Lost: func(err error) {
				select {
				case lost <- err:
				case <-ctx.Done():
				}
			},
			Connected: func(ctx context.Context) error { connected <- ctx; return nil },
		})
	}()
	<-lost
	refused("no such file")

	server := answer(t, socket, "v2.4.2")
	for there := false; !there; {
		select {
		case <-lost: // a look at it that came too early
		case <-connected:
			there = true
		}
	}
	if err := c.DeleteContainer(t.Context(), "c1"); errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "unknown service") {
		t.Errorf("it is there, and the call did not get to it: %v", err)
	}
	server.Stop()
	<-lost // the events
	refused("read containerd's events")
	<-lost // and what was asked then
	refused("does not answer")
	cancel()
	if err := errors.Join(<-followed, conn.Close()); err != nil {
		t.Error(err)
	}
}

// A stop of berth shut the connection with the subscription, so that those who are closed after it
// were refused: it was never noted that all images are on the disk.
func TestAStopLeavesTheConnectionToThoseClosedLater(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	answer(t, socket, "v2.4.2")
	conn, err := connection.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	c := New(conn, Config{Owner: "o", Snapshotter: "s", Shims: shims.New(shims.Config{Logger: log}), Logger: log})
	ctx, cancel := context.WithCancel(t.Context())
	connected, followed := make(chan struct{}), make(chan error, 1)
	go func() {
		followed <- c.Follow(ctx, Listener{
			Lost:      func(error) {},
			Connected: func(context.Context) error { close(connected); return nil },
		})
	}()
	<-connected
	cancel()
	if err := <-followed; err != nil {
		t.Error(err)
	}
	if err := c.DeleteContainer(t.Context(), "c1"); errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "unknown service") {
		t.Errorf("berth stops, and a call did not get to containerd: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// PROPERTIES 34: a containerd of a version that berth cannot work with was connected to and lost
// again and again. It is refused in words now, also if it takes the place of a newer one, and one
// that berth can work with is used as soon as it answers.
func TestAContainerdThatIsTooOldIsRefusedOnEachConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	conn, err := connection.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	c := New(conn, Config{Owner: "o", Snapshotter: "s", Shims: shims.New(shims.Config{Logger: log}), Logger: log})
	ctx, cancel := context.WithCancel(t.Context())
	lost, connected, followed := make(chan error), make(chan struct{}), make(chan error, 1)
	go func() {
		followed <- c.Follow(ctx, Listener{
			Connected: func(context.Context) error { connected <- struct{}{}; return nil },
			Lost: func(err error) {
				select {
				case lost <- err:
				case <-ctx.Done():
				}
			},
		})
	}()
	for _, version := range []string{"1.6.24~ds1", "v2.4.2", "v1.6.0", "1.7.29", "unknown"} {
		server := answer(t, socket, version)
		for there := false; !there; {
			select {
			case <-connected:
				there = true
				if err := conn.Err(); err != nil || strings.Contains(version, "1.6") {
					t.Errorf("connected to %s: %v", version, err)
				}
			case err := <-lost:
				var old TooOldError
				if there = errors.As(err, &old) && string(old) == version; there && !strings.Contains(version, "1.6") {
					t.Errorf("%s is refused: %v", version, err)
				}
				if is := conn.Err(); there && (!errdefs.IsUnavailable(is) || !errors.As(is, &old) || old.ConditionReason() == "") {
					t.Errorf("with %s, calls end with %v", version, is)
				}
			}
		}
		server.Stop()
	}
	cancel()
	if err := errors.Join(<-followed, conn.Close()); err != nil {
		t.Error(err)
	}
}

// answer serves at a socket what a containerd of a version answers that has just started.
func answer(t *testing.T, socket, version string) *grpc.Server {
	t.Helper()
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	a := answering{version: version}
	introspectionapi.RegisterIntrospectionServer(server, a)
	eventsapi.RegisterEventsServer(server, a)
	versionapi.RegisterVersionServer(server, a)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	return server
}

// PROPERTIES 34: a containerd that goes away ends the relist and the events, in either order.
func TestARelistThatFindsNobodyShutsTheConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	answer(t, socket, "v2.4.2")
	conn, err := connection.Dial("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	c := New(conn, Config{Owner: "o", Snapshotter: "s", Shims: shims.New(shims.Config{Logger: log}), Logger: log})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	away := fmt.Errorf("list containers: %w", errdefs.ErrUnavailable)
	err = c.Follow(ctx, Listener{
		Connected: func(context.Context) error { return away },
		Lost: func(err error) {
			if !errors.Is(err, away) {
				return // a look at it that came too early
			}
			if err := c.DeleteContainer(t.Context(), "c1"); !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), "list containers") {
				t.Errorf("whoever answers next is asked before it is known who that is: %v", err)
			}
			cancel()
		},
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Error(err)
	}
}

// A containerd in this process is used as soon as it is started, and a follower waits for that.
func TestAConnectionThatIsAbsentAsksNothing(t *testing.T) {
	why := errors.New("it is starting")
	conn := connection.Absent(why)
	defer conn.Close()
	if _, err := conn.Version(t.Context()); !errdefs.IsUnavailable(connection.Native(err)) || !strings.Contains(err.Error(), why.Error()) {
		t.Error(err)
	}
	conn.Set(errors.New("the disk is full"))
	if _, err := conn.Version(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Error(err)
	}
	f := &fake{}
	client := f.adapter(t).client.Client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waited := make(chan struct{})
	go func() { defer close(waited); conn.Wait(ctx) }()
	conn.Use(client)
	<-waited
	if _, err := conn.Version(t.Context()); !errdefs.IsUnavailable(connection.Native(err)) || conn.Asked() != client {
		t.Errorf("calls pass before containerd has answered: %v", err)
	}
	conn.Set(nil)
	if err := ctx.Err(); err != nil || conn.Err() != nil || conn.Client() != client {
		t.Error(err, conn.Err())
	}
}
