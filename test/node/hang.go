// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	berthv1 "berth/api/berth/v1"
	"berth/api/client"
	"berth/test/command"
)

const (
	// answer is how long a call may take, and the end of a process that was asked to end. A test that
	// has more time for it sets a deadline of its own.
	answer = 3 * time.Minute
	// lanes is how long the question for a node's pending work may take.
	lanes = 10 * time.Second
)

// Dial connects to a socket of berth or containerd for a test. A call without a deadline gets one:
// a call that would never be answered fails with the pending work of the service.
func Dial(t testing.TB, socket string) *client.Client {
	t.Helper()
	c, err := dial(socket, answer, func(method string) { t.Errorf("%s is not answered within %s\n%s", method, answer, waitsFor(socket)) })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dial connects to a socket. late is called with the method of a call that is not answered within
// limit, and which ends then.
func dial(socket string, limit time.Duration, late func(method string)) (*client.Client, error) {
	return client.Dial(socket, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, bounded := ctx.Deadline(); bounded {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		// The service is not told of a deadline, so that it still has the call when it reports its
		// pending work.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		said := make(chan struct{})
		timer := time.AfterFunc(limit, func() {
			defer close(said)
			late(method)
			cancel()
		})
		err := invoke(ctx, method, req, reply, cc, opts...)
		if !timer.Stop() {
			<-said
		}
		return err
	}))
}

// waitsFor is the output of `berth debug lanes` for a berth.
func waitsFor(socket string) string {
	ctx, cancel := context.WithTimeout(context.Background(), lanes)
	defer cancel()
	c, err := client.Dial(socket)
	if err != nil {
		return fmt.Sprint("berth debug lanes: ", err)
	}
	defer c.Close()
	resp, err := c.Node.Lanes(ctx, &berthv1.LanesRequest{})
	if err != nil {
		return fmt.Sprint("berth debug lanes: ", err)
	}
	return fmt.Sprint("berth debug lanes: ", resp.GetLanes())
}

// waits is the pending work of the node's berth.
func (n *Node) waits() string { return waitsFor(n.Dir + "/berth.sock") }

// connect connects to the node's berth. A call that is not answered ends the node.
func (n *Node) connect() (*client.Client, error) {
	return dial(n.Dir+"/berth.sock", answer, func(method string) { n.hangs(fmt.Sprintf("%s is not answered within %s", method, answer)) })
}

// hangs fails the test because something does not end, and ends berth, so that everything that
// waits for it ends as well: berth's log then has the state of each of its goroutines.
func (n *Node) hangs(what string) {
	n.t.Errorf("%s; berth is ended for that, and its log has the goroutines\n%s", what, n.waits())
	n.hung.Store(true)
	if p := n.serving.Load(); p != nil {
		p.quit()
	}
}

// bound ends the waits of the test halfway to the time at which go test ends all tests of the
// package, and looks for leaks of the node as after any other failure. The caller stops it at the
// end of the test.
func (n *Node) bound() (stop func()) {
	t, ok := n.t.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return func() {}
	}
	end, ok := t.Deadline()
	if !ok {
		return func() {}
	}
	limit := time.Until(end) / 2
	said := make(chan struct{})
	timer := time.AfterFunc(limit, func() {
		defer close(said)
		n.hangs(fmt.Sprintf("the test has not ended within %s", limit))
	})
	return func() {
		if !timer.Stop() {
			<-said
		}
	}
}

// Command is a command of berth's for the node.
func (n *Node) Command(args ...string) *exec.Cmd {
	n.t.Helper()
	cmd := command.Asking(n.t, answer, n.waits, filepath.Join(n.Module, "build/bin/berth"), args...)
	cmd.Env = append(os.Environ(), "BERTH_ENDPOINT="+n.Dir+"/berth.sock")
	return cmd
}

// quit ends a process that hangs. A Go program writes the state of its goroutines.
func (p *Process) quit() {
	for _, s := range []syscall.Signal{syscall.SIGCONT, syscall.SIGQUIT, syscall.SIGKILL} {
		_ = p.cmd.Process.Signal(s)
		if s == syscall.SIGCONT {
			continue
		}
		select {
		case <-p.done:
			return
		case <-time.After(lanes):
		}
	}
}

// ended waits until the process has ended, and ends it if that takes too long.
func (p *Process) ended() {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(answer):
		p.t.Errorf("%s has not ended within %s", p.cmd, answer)
		p.quit()
	}
}
