// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/history/bundle"
	"berth/internal/history/recorder"
	"berth/internal/images/image"
)

type adminFake struct{}

func (adminFake) Import(ctx context.Context, path, ref string) (image.Imported, error) {
	switch path {
	case "/slow":
		<-ctx.Done()
		return image.Imported{}, fmt.Errorf("still reading %s: %w", path, context.Cause(ctx))
	case "":
		return image.Imported{}, nil
	case "/panic":
		panic("boom")
	}
	return image.Imported{Names: []string{path}, LeftOut: []string{ref}}, nil
}

func (adminFake) VerifyImage(context.Context, string, bool) (any, error) { return nil, nil }

func (adminFake) PullProgress(_ context.Context, ref string) (any, error) {
	if ref != "app" {
		return (*image.Progress)(nil), nil
	}
	return &image.Progress{Total: 1 << 40, Fetched: 7, Blobs: 2, Complete: 1}, nil
}

func (adminFake) ImportProgress(_ context.Context, path string) (any, error) {
	if path != "/a.tar" {
		return (*image.Progress)(nil), nil
	}
	return &image.Progress{Total: 1 << 40, Fetched: 7}, nil
}

func (adminFake) Transfers(context.Context) (any, error) {
	return []image.Transfer{{Image: "app", Progress: image.Progress{Total: 1 << 40}, Waiters: []string{"a/b"}}}, nil
}

func (adminFake) Images(context.Context) (any, error) {
	return []image.Listed{{ID: "sha256:1", Size: 1 << 40, Disk: 1 << 41}}, nil
}

func (adminFake) PruneImages(_ context.Context, dryRun bool, olderThan time.Duration) (any, error) {
	if !dryRun || olderThan != 90*time.Second {
		return nil, fmt.Errorf("dry run %v, older than %s: %w", dryRun, olderThan, errdefs.ErrInvalidArgument)
	}
	return image.Pruned{Bytes: 7, Used: 1}, nil
}

func (adminFake) Disk(context.Context) (any, error) { return Disk{Path: "/x", Total: 1 << 40}, nil }

func (adminFake) Bundle(context.Context) (bundle.Node, error) { return bundle.Node{}, nil }

func (adminFake) Why(context.Context, string) (any, error) { return nil, nil } // nobody asks

func (adminFake) Timeline(_ context.Context, q recorder.Query) (any, error) {
	return nil, fmt.Errorf("timeline of %q: %w", q.Of, errdefs.ErrNotFound)
}

func (adminFake) Records(_ context.Context, after uint64, since time.Time) (recorder.Batch, error) {
	return recorder.Batch{Records: []recorder.Record{{Number: 1<<60 + after, Entry: []byte(`{"at":"` + since.Format(time.RFC3339Nano) + `"}`)}}}, nil
}

func (adminFake) Ended(context.Context) (map[string]event.Exit, error) {
	return map[string]event.Exit{"c1": {Code: 42, Measured: true}}, nil
}

func (adminFake) Lanes(context.Context) (any, error) {
	return []struct {
		ID string `json:"id"`
	}{{"c1"}}, nil
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

func dialFake(t *testing.T) *Client {
	t.Helper()
	return dialServer(t, &Runtime{}, slog.New(slog.DiscardHandler), &observed{})
}

func dialServer(t testing.TB, r *Runtime, log *slog.Logger, o Observer) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(r, &Image{}, adminFake{}, log, o)
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	c, err := Dial("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if err := errors.Join(<-served, c.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
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
	if _, err := c.Import(t.Context(), "/panic", ""); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "boom") {
		t.Errorf("the call ended with %v", err)
	}
	if v, err := c.RuntimeServiceClient.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil || v.GetRuntimeName() != "berth" {
		t.Errorf("the call after the panics: %v %v", v, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if want := []string{"GetContainerEvents", "Import"}; !slices.Equal(o.panicked, want) {
		t.Errorf("panics were reported for %q, want %q", o.panicked, want)
	}
	if want := []string{"GetContainerEvents Internal", "Import Internal", "Version OK"}; !slices.Equal(o.called, want) {
		t.Errorf("calls were reported as %q, want %q", o.called, want)
	}
	for _, frame := range []string{"TestAPanicEndsItsCallAlone", "adminFake.Import"} { // who panicked
		if !strings.Contains(log.String(), frame) {
			t.Errorf("the log has no stack with %s:\n%s", frame, &log)
		}
	}
}

func TestAdmin(t *testing.T) {
	c, ctx := dialFake(t), t.Context()
	if names, err := c.Import(ctx, "/a", "r"); err != nil || len(names.Names) != 1 || names.Names[0] != "/a" || names.LeftOut[0] != "r" {
		t.Errorf("import: %q %v", names, err)
	}
	if names, err := c.Import(ctx, "", ""); err != nil || len(names.Names) != 0 {
		t.Errorf("import of nothing: %q %v", names, err)
	}
	if v, err := c.Lanes(ctx); err != nil || string(v) != `[{"id":"c1"}]` {
		t.Errorf("lanes: %s %v", v, err)
	}
	if ended, err := c.Ended(ctx); err != nil || len(ended) != 1 || ended["c1"] != (event.Exit{Code: 42, Measured: true}) {
		t.Errorf("ended: %v %v", ended, err)
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	if b, err := c.Records(ctx, 7, since); err != nil || len(b.Records) != 1 || b.Records[0].Number != 1<<60+7 ||
		string(b.Records[0].Entry) != `{"at":"2026-01-02T03:04:05.000000006Z"}` { // no number loses a digit
		t.Errorf("records: %+v %v", b, err)
	}
	if _, err := c.Timeline(ctx, "c2"); status.Code(err) != codes.NotFound || !strings.Contains(Explain(err).Error(), `timeline of "c2"`) {
		t.Errorf("timeline: %v", err)
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

func TestExplain(t *testing.T) {
	away := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /run/b.sock: connect: no such file or directory"`)
	closed := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /run/b.sock: connect: permission denied"`)
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "plain"},
		{away, "berth does not answer at /run/b.sock; is `berth serve` running?"},
		{closed, "/run/b.sock may not be used by this user; run the command as root"},
		{status.Error(codes.Unavailable, "registry x does not answer"), "registry x does not answer"},
		{status.Error(codes.NotFound, "container c1 is not there"), "container c1 is not there"},
		{status.Error(codes.Unimplemented, "method Exec not implemented"), "berth does not support that: method Exec not implemented"},
		{fmt.Errorf("start container a: %w", status.Error(codes.Internal, "it broke")), "start container a: it broke"},
		{errors.Join(status.Error(codes.Internal, "one"), fmt.Errorf("two: %w", status.Error(codes.NotFound, "gone"))), "one\ntwo: gone"},
	} {
		if got := Explain(c.err); got.Error() != c.want || !errors.Is(got, c.err) {
			t.Errorf("%v\nbecame %q\nwant   %q", c.err, got, c.want)
		}
	}
	if Explain(nil) != nil {
		t.Error("no error became one")
	}
}

func TestDialWantsASocket(t *testing.T) {
	for _, e := range []string{"", "unix://", "unix:", "localhost:80", "unix://relative", "tcp://x", "tcp://x/y", "a\x00b"} {
		if _, err := Dial(e); err == nil || !strings.Contains(err.Error(), "unix:///PATH") {
			t.Errorf("%q: got %v", e, err)
		}
	}
	if _, err := Dial("/" + strings.Repeat("x", 200)); err == nil || !strings.Contains(err.Error(), "at most 107") {
		t.Errorf("a path that is too long: %v", err)
	}
	if _, err := Dial(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a directory: %v", err)
	}
}

// A relative path was refused, and one with a % was taken for another.
func TestDialTakesEveryFormOfASocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a%41#?b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	l, err := net.Listen("unix", "s")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(&Runtime{}, &Image{}, adminFake{}, slog.New(slog.DiscardHandler), &observed{})
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	for _, e := range []string{"s", "./s", "../" + filepath.Base(dir) + "/s", "unix:s", dir + "/s", "unix:" + dir + "/s", "unix://" + dir + "/s"} {
		c, err := Dial(e)
		if err != nil {
			t.Errorf("%q: %v", e, err)
			continue
		}
		if _, err := c.Import(t.Context(), "/a.tar", ""); err != nil {
			t.Errorf("%q: %v", e, err)
		}
		c.Close()
	}
}

// A caller that waits no longer learns what it waited for: the answer comes a little before its
// deadline.
func TestTheAnswerComesBeforeTheDeadline(t *testing.T) {
	c := dialFake(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := c.Import(ctx, "/slow", "")
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "still reading /slow") {
		t.Errorf("got %v", err)
	}
}

func TestTheProgressOfPullsAndImportsIsAnswered(t *testing.T) {
	c := dialFake(t)
	p, err := c.PullProgress(t.Context(), "app")
	if err != nil || *p != (image.Progress{Total: 1 << 40, Fetched: 7, Blobs: 2, Complete: 1}) {
		t.Errorf("%+v %v", p, err)
	}
	if p, err := c.PullProgress(t.Context(), "other"); err != nil || p != nil {
		t.Errorf("not being pulled: %+v %v", p, err)
	}
	if p, err := c.ImportProgress(t.Context(), "/a.tar"); err != nil || *p != (image.Progress{Total: 1 << 40, Fetched: 7}) {
		t.Errorf("an import: %+v %v", p, err)
	}
	if p, err := c.ImportProgress(t.Context(), "/b.tar"); err != nil || p != nil {
		t.Errorf("not being imported: %+v %v", p, err)
	}
}

func TestWhatImagesAreAndTakeIsAnswered(t *testing.T) {
	c := dialFake(t)
	if list, err := c.Transfers(t.Context()); err != nil || len(list) != 1 || list[0].Image != "app" || list[0].Total != 1<<40 || len(list[0].Waiters) != 1 {
		t.Errorf("%+v %v", list, err)
	}
	if list, err := c.Images(t.Context()); err != nil || len(list) != 1 || list[0].Size != 1<<40 || list[0].Disk != 1<<41 {
		t.Errorf("%+v %v", list, err)
	}
	if p, err := c.PruneImages(t.Context(), true, 90*time.Second); err != nil || p.Bytes != 7 || p.Used != 1 {
		t.Errorf("%+v %v", p, err)
	}
	var out image.Pruned
	if err := c.admin(t.Context(), "PruneImages", map[string]any{"dryRun": true}, &out); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without an age: %v", err)
	}
	if d, err := c.Disk(t.Context()); err != nil || d.Path != "/x" || d.Total != 1<<40 {
		t.Errorf("%+v %v", d, err)
	}
	if err := c.admin(t.Context(), "Nothing", nil, &out); !IsUnimplemented(err) {
		t.Errorf("%v", err)
	}
}
