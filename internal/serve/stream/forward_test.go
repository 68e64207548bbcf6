// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// halfPipe is a connection in memory, whose deadlines are in virtual time.
type halfPipe struct{ net.Conn }

func (halfPipe) CloseWrite() error { return nil }

// podSays makes the pod's end of each connection say something.
func (w *world) podSays(says func(conn net.Conn)) {
	w.service.dial = func(context.Context, string, int) (halfConn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			says(far)
		}()
		return halfPipe{near}, nil
	}
}

// A transfer that takes longer than the time without a byte was cut off in the middle when the
// client had closed its half, and nobody learned of it.
func TestALongTransferToAClientThatHasClosedItsHalfIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bytes = 10
		w := newWorld(t)
		w.podSays(func(conn net.Conn) {
			for range bytes {
				time.Sleep(lingerTimeout - time.Second)
				_, _ = io.WriteString(conn, "x")
			}
		})
		st := newFakeStream("")
		if err := w.service.PortForward(t.Context(), "p1", 1, st); err != nil {
			t.Error(err)
		}
		if got := st.written(); got != strings.Repeat("x", bytes) {
			t.Errorf("got %q", got)
		}
	})
}

// slowStream is a client that takes its time for what it gets.
type slowStream struct{ *fakeStream }

func (s slowStream) Write(b []byte) (int, error) {
	time.Sleep(2 * lingerTimeout)
	return s.fakeStream.Write(b)
}

func TestASlowClientIsNotASilentPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.podSays(func(conn net.Conn) {
			_, _ = io.WriteString(conn, "one")
			_, _ = io.WriteString(conn, "two")
		})
		st := slowStream{newFakeStream("")}
		if err := w.service.PortForward(t.Context(), "p1", 1, st); err != nil {
			t.Error(err)
		}
		if got := st.written(); got != "onetwo" {
			t.Errorf("got %q", got)
		}
	})
}

func TestAPodThatSaysNothingMoreIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.podSays(func(conn net.Conn) {
			_, _ = io.WriteString(conn, "half")
			_, _ = io.Copy(io.Discard, conn)
		})
		st := newFakeStream("")
		before := time.Now()
		err := w.service.PortForward(t.Context(), "p1", 1, st)
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(before) != lingerTimeout || st.written() != "half" {
			t.Errorf("got %v after %s and %q", err, time.Since(before), st.written())
		}
	})
}

// fullListener is a port whose program takes no connection, and which has as many as may wait.
func fullListener(t *testing.T) (port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // one more than may wait
		client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(client) })
		if err := unix.Connect(client, at); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			t.Fatal(err)
		}
	}
	return at.(*unix.SockaddrInet4).Port
}

// PROPERTIES 38: a pod that takes no connection kept a thread of berth's for each that was
// forwarded to it, for twenty seconds.
func TestAConnectionThatIsNotTakenKeepsNoThread(t *testing.T) {
	port := fullListener(t)
	var entered, inside atomic.Int32
	enter := func(_ string, f func() error) error {
		inside.Add(1)
		defer inside.Add(-1)
		entered.Add(1)
		return f()
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := dialThrough(ctx, enter, "/netns", port)
		result <- err
	}()
	until(t, "the namespace is left", func() bool { return entered.Load() == 1 && inside.Load() == 0 })
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
