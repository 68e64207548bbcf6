// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	berthv1 "berth/api/berth/v1"
)

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
		{status.Errorf(codes.Unavailable, "the snapshotter at /run/b.sock: %s", status.Convert(away).Message()), "the snapshotter at /run/b.sock: " + status.Convert(away).Message()},
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
	s := grpc.NewServer()
	berthv1.RegisterNodeServer(s, berthv1.UnimplementedNodeServer{})
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
		if _, err := c.Node.Version(t.Context(), &berthv1.VersionRequest{}); !IsUnimplemented(err) { // it is answered
			t.Errorf("%q: %v", e, err)
		}
		c.Close()
	}
}
