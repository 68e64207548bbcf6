// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/heart/pod"
)

const (
	// lingerTimeout is how long a connection stays without a byte from the pod when the client has
	// closed its half. A client that is gone looks the same.
	lingerTimeout = 5 * time.Minute
	// inputPiece is how much of a client's input is in memory at a time.
	inputPiece = 8 << 10
)

// PortForward connects a stream with a port of a pod's loopback, IPv4 first and then IPv6, until
// both directions have ended or the pod has.
func (s *Service) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	t, err := s.sandbox(id)
	if err == nil {
		c := client{stdin: stream, stdout: stream}
		err = s.visited(ctx, Access{What: "port-forward", Target: t, Port: port}, &c, func(ctx context.Context) (int32, error) {
			return 0, s.forward(ctx, t, port, both{c.stdin, c.stdout})
		})
	}
	if err != nil {
		return fmt.Errorf("forward port %d of pod %s: %w", port, id, err)
	}
	return nil
}

// both is the two directions of a client's stream.
type both struct {
	io.Reader
	io.WriteCloser
}

func (s *Service) forward(ctx context.Context, t pod.Target, port int32, stream io.ReadWriteCloser) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("there is no such port: %w", errdefs.ErrInvalidArgument)
	}
	if err := s.ports.Take(t.PodID, 1); err != nil {
		return err
	}
	defer s.ports.Give(t.PodID, 1)
	conn, err := s.dial(ctx, t.NetNS, int(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-t.Ended:
		case <-s.stopping:
		case <-ctx.Done():
		case <-over:
			return
		}
		_ = conn.Close()
		_ = stream.Close()
	}()
	return join(conn, stream)
}

// sandbox describes a sandbox that is ready.
func (s *Service) sandbox(id string) (pod.Target, error) {
	t, err := s.cfg.Target(id)
	switch {
	case errdefs.IsNotFound(err):
		return t, fmt.Errorf("sandbox %q: %w", id, errdefs.ErrNotFound)
	case err != nil:
		return t, err
	case t.ID != t.PodID:
		return t, fmt.Errorf("%s is a container, not a sandbox: %w", id, errdefs.ErrNotFound)
	case !t.Running:
		return t, fmt.Errorf("sandbox %s is not ready: %w", t.ID, errdefs.ErrFailedPrecondition)
	}
	return t, nil
}

// halfConn is a connection of which one direction can end before the other.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// join copies both directions. It returns when the pod has closed its side, or when the client has
// closed its own and nothing came from the pod for lingerTimeout, which is an error because the pod
// may send more.
func join(conn halfConn, stream io.ReadWriter) error {
	from := &lingering{halfConn: conn}
	go func() { // the end of the stream or of the connection ends it
		_, err := io.CopyBuffer(struct{ io.Writer }{conn}, stream, make([]byte, inputPiece))
		_ = conn.CloseWrite()
		if err != nil {
			_ = conn.Close()
		}
		from.alone.Store(true)
		from.extend() // for the read that waits already
	}()
	// Nothing else is an error: pods reset connections that they do not need any more, and this
	// function itself closes one to which it cannot write.
	if _, err := io.Copy(stream, from); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the client has closed its half, and the pod has sent nothing for %s: %w", lingerTimeout, err)
	}
	return nil
}

// lingering is a connection from which each read takes lingerTimeout at most once the client has
// closed its half.
type lingering struct {
	halfConn
	alone atomic.Bool
}

// Read reads from the pod. The time that the client takes for earlier output does not count.
func (l *lingering) Read(b []byte) (int, error) {
	if l.alone.Load() {
		l.extend()
	}
	return l.halfConn.Read(b)
}

func (l *lingering) extend() { _ = l.SetReadDeadline(time.Now().Add(lingerTimeout)) }
