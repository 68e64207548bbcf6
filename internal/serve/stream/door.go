// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/retry"
)

// leaveTime is how long the clients that Admit has let in may still be told that berth stops: the
// server takes at most farewellTime for that.
const leaveTime = 2 * farewellTime

// Admit lets the clients of another listener in until ctx ends, which closes the listener, and
// returns nil then. It is for clients that cannot reach the server's address, such as those outside
// the network namespace of a berth without root. Each of them is connected with that address, so
// that the bounds of the server hold for them: the connection ends as soon as the server, or the
// client, closes its side. A client that does not read may keep two descriptors after that, until
// it goes: it cannot be told from one that reads slowly. So only those may be let in who may harm
// berth anyway, such as its own user. Connections made by Admit end soon after ctx.
func (s *Server) Admit(ctx context.Context, lis net.Listener) error {
	// Closed a second time, it could remove a socket that the next berth has made at the same path.
	closeOnce := sync.OnceFunc(func() { _ = lis.Close() })
	defer context.AfterFunc(ctx, closeOnce)()
	var clients sync.WaitGroup
	late, end := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		closeOnce()
		t := time.AfterFunc(leaveTime, end)
		clients.Wait()
		t.Stop()
		end()
	}()
	wait := firstWait
	for {
		client, err := lis.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = client.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept clients of streams on %s: %w", lis.Addr(), err)
		case err != nil: // there are too many descriptors, for example: those who are there go on
			if wait == firstWait {
				s.cfg.Logger.Warn("clients of streams not accepted, retrying", "at", lis.Addr(), "err", err)
			}
			retry.Sleep(ctx.Done(), wait)
			wait = min(2*wait, time.Second)
			continue
		}
		wait = firstWait
		clients.Go(func() {
			defer client.Close()
			if err := s.connect(ctx, late, client); err != nil {
				s.cfg.Logger.Debug("a client of streams is not let in", "err", err)
			}
		})
	}
}

// connect passes bytes on between a client and the server's address until one of them closes, or
// late ends. After the end of ctx it makes no connection.
func (s *Server) connect(ctx, late context.Context, client net.Conn) error {
	s.mu.Lock()
	base, err := s.mu.base, s.mu.err
	s.mu.Unlock()
	if base == nil {
		return fmt.Errorf("the streaming server does not serve: %w: %w", err, errdefs.ErrUnavailable)
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", base.Host)
	if err != nil {
		return err
	}
	end := func() {
		_ = client.Close()
		_ = server.Close()
	}
	defer end()
	defer context.AfterFunc(late, end)()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, err := io.Copy(server, client)
		if half, ok := server.(*net.TCPConn); ok && err == nil {
			_ = half.CloseWrite() // the server may send more
		} else {
			end()
		}
	}()
	_, err = io.Copy(client, server)
	end() // the server has sent everything
	<-sent
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
