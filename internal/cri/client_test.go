// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type adminFake struct{}

func (adminFake) Import(ctx context.Context, path, ref string) ([]string, error) {
	switch path {
	case "/slow":
		<-ctx.Done()
		return nil, fmt.Errorf("still reading %s: %w", path, context.Cause(ctx))
	case "":
		return nil, nil
	case "/panic":
		panic("boom")
	}
	return []string{path, ref}, nil
}

func (adminFake) Timeline(_ context.Context, id string) (any, error) {
	return nil, fmt.Errorf("timeline of %q: %w", id, errdefs.ErrNotFound)
}

func (adminFake) Lanes(context.Context) (any, error) {
	return []struct {
		ID string `json:"id"`
	}{{"c1"}}, nil
}

func dialFake(t *testing.T) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(&Runtime{}, &Image{}, adminFake{}, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
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

func TestAdmin(t *testing.T) {
	c, ctx := dialFake(t), t.Context()
	if names, err := c.Import(ctx, "/a", "r"); err != nil || len(names) != 2 || names[0] != "/a" || names[1] != "r" {
		t.Errorf("import: %q %v", names, err)
	}
	if names, err := c.Import(ctx, "", ""); err != nil || len(names) != 0 {
		t.Errorf("import of nothing: %q %v", names, err)
	}
	if v, err := c.Lanes(ctx); err != nil || string(v) != `[{"id":"c1"}]` {
		t.Errorf("lanes: %s %v", v, err)
	}
	if _, err := c.Timeline(ctx, "c2"); status.Code(err) != codes.NotFound || !strings.Contains(Explain(err).Error(), `timeline of "c2"`) {
		t.Errorf("timeline: %v", err)
	}
	if _, err := c.Import(ctx, "/panic", ""); status.Code(err) != codes.Internal {
		t.Errorf("a panic is its call's error: %v", err)
	}
	if v, err := c.RuntimeServiceClient.Version(ctx, &runtimeapi.VersionRequest{}); err != nil || v.GetRuntimeName() != "berth" {
		t.Errorf("after the panic: %v %v", v, err)
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
		{away, "no berth answers at /run/b.sock; is `berth serve` running?"},
		{closed, "/run/b.sock is not open to this user; run the command as root"},
		{status.Error(codes.Unavailable, "registry x does not answer"), "registry x does not answer"},
		{status.Error(codes.NotFound, "container c1 is not there"), "container c1 is not there"},
		{status.Error(codes.Unimplemented, "method Exec not implemented"), "this berth cannot do that: method Exec not implemented"},
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
	for _, e := range []string{"", "localhost:80", "unix://relative", "tcp://x"} {
		if _, err := Dial(e); err == nil || !strings.Contains(err.Error(), "unix:///PATH") {
			t.Errorf("%q: got %v", e, err)
		}
	}
}

// A caller that waits no longer learns what it waited for: the answer comes a little before its deadline.
func TestTheAnswerComesBeforeTheDeadline(t *testing.T) {
	c := dialFake(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := c.Import(ctx, "/slow", "")
	if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "still reading /slow") {
		t.Errorf("got %v", err)
	}
}
