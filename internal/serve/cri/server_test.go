// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
	"berth/internal/base/ops"
)

// control is the service berth.v1.Control, as far as the tests call it.
type control struct {
	berthv1.UnimplementedControlServer
}

func (control) ImportImages(ctx context.Context, req *berthv1.ImportImagesRequest) (*berthv1.ImportImagesResponse, error) {
	switch path := req.GetPath(); path {
	case "/slow":
		<-ctx.Done()
		return nil, fmt.Errorf("still reading %s: %w", path, context.Cause(ctx))
	case "/panic":
		panic("boom")
	case "/absent":
		return nil, fmt.Errorf("import %s: %w", path, errdefs.ErrNotFound)
	}
	return &berthv1.ImportImagesResponse{}, nil
}

func importing(ctx context.Context, c *client.Client, path string) error {
	_, err := c.Control.ImportImages(ctx, &berthv1.ImportImagesRequest{Path: path})
	return err
}

// observed is an Observer that remembers.
type observed struct {
	mu       sync.Mutex
	called   []string // METHOD CODE
	panicked []string
}

func (o *observed) Called(method string, _ time.Duration, code codes.Code) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.called = append(o.called, method+" "+code.String())
}

func (o *observed) Panicked(method string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.panicked = append(o.panicked, method)
}

func dialFake(t *testing.T) *client.Client {
	t.Helper()
	return dialServer(t, &Runtime{}, slog.New(slog.DiscardHandler), &observed{})
}

func dialServer(t testing.TB, r *Runtime, log *slog.Logger, o Observer) *client.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	serveOn(t, path, r, log, o)
	c, err := client.Dial("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func serveOn(t testing.TB, path string, r *Runtime, log *slog.Logger, o Observer) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(r, &Image{}, log, o, &ops.List{})
	berthv1.RegisterControlServer(s, control{})
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// A panic in a stream ended the whole process.
func TestAPanicEndsItsCallAlone(t *testing.T) {
	var log bytes.Buffer
	o := &observed{}
	c := dialServer(t, &Runtime{Subscribe: func() Events { panic("boom") }}, slog.New(slog.NewTextHandler(&log, nil)), o)
	stream, err := c.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "boom") {
		t.Errorf("the stream ended with %v", err)
	}
	if err := importing(t.Context(), c, "/panic"); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "boom") {
		t.Errorf("the call ended with %v", err)
	}
	if v, err := c.RuntimeServiceClient.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil || v.GetRuntimeName() != "berth" {
		t.Errorf("the call after the panics: %v %v", v, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if want := []string{"GetContainerEvents", "ImportImages"}; !slices.Equal(o.panicked, want) {
		t.Errorf("panics were reported for %q, want %q", o.panicked, want)
	}
	if want := []string{"GetContainerEvents Internal", "ImportImages Internal", "Version OK"}; !slices.Equal(o.called, want) {
		t.Errorf("calls were reported as %q, want %q", o.called, want)
	}
	for _, frame := range []string{"TestAPanicEndsItsCallAlone", "control.ImportImages"} { // who panicked
		if !strings.Contains(log.String(), frame) {
			t.Errorf("the log has no stack with %s:\n%s", frame, &log)
		}
	}
}

func TestTheKubeletUnderstandsTheVersion(t *testing.T) {
	v, err := dialFake(t).RuntimeServiceClient.Version(t.Context(), &runtimeapi.VersionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := version.ParseSemantic(v.GetRuntimeVersion()); err != nil || v.GetRuntimeApiVersion() != "v1" {
		t.Errorf("%v: %v", v, err)
	}
}

// A caller that waits no longer learns what it waited for: the answer comes a little before its
// deadline.
func TestTheAnswerComesBeforeTheDeadline(t *testing.T) {
	c := dialFake(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := importing(ctx, c, "/slow")
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "still reading /slow") {
		t.Errorf("got %v", err)
	}
}

// A command of before the contract is told which version it needs, and a method that nobody knows
// is Unimplemented.
func TestAnEarlierCommandLearnsWhichVersionItNeeds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serveOn(t, path, &Runtime{}, slog.New(slog.DiscardHandler), &observed{})
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for method, want := range map[string]codes.Code{
		"/berth.v1.Admin/Lanes": codes.FailedPrecondition,
		"/berth.v1.Node/Later":  codes.Unimplemented,
	} {
		err := conn.Invoke(t.Context(), method, &structpb.Struct{}, &structpb.Struct{})
		if status.Code(err) != want || want == codes.FailedPrecondition && !strings.Contains(err.Error(), "use the berth command of that version") {
			t.Errorf("%s: %v, want %s", method, err, want)
		}
	}
}
