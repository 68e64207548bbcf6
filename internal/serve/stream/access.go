// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"berth/internal/base/event"
	"berth/internal/base/ops"
	"berth/internal/heart/pod"
)

// Access is one use of a container or a pod by a client: a command, a connection with a container's
// own process, or a connection with a port.
type Access struct {
	What     string // exec, exec-sync, attach, port-forward or checkpoint
	Target   pod.Target
	By       event.Client // the client of CRI that requested it
	Args     []string     // of exec and exec-sync; of checkpoint, where it is written
	Port     int32        // of port-forward
	Terminal bool
	Timeout  time.Duration // of exec-sync; 0: none
}

// AccessLog keeps a record of each access.
type AccessLog interface {
	// Begin is called before an access begins. An error refuses it. It may take a moment, and bounds
	// that itself.
	Begin(a Access) (Visit, error)
}

// Visit is an access that goes on.
type Visit interface {
	// Wrote is called with output of a terminal, and Resized with its size. They must not block,
	// nor keep b.
	Wrote(b []byte)
	Resized(width, height uint16)
	// End is called once. code is that of a command that has ended; err is the reason if there is
	// none. in and out count bytes, from the client and to it.
	End(code int32, err error, in, out int64)
}

// visited carries out an access, and keeps a record of it. do returns the code of a command.
func (s *Service) visited(ctx context.Context, a Access, c *client, do func(ctx context.Context) (int32, error)) error {
	ctx, op := s.cfg.Ops.Part(ctx, ops.Work{
		Kind: kinds[a.What],
		What: ops.Program(a.Args),
		Of:   ops.Object{ID: a.Target.ID},
	})
	defer op.End()
	if s.cfg.AccessLog == nil {
		_, err := do(ctx)
		return err
	}
	a.By = event.ClientOf(ctx)
	v, err := s.cfg.AccessLog.Begin(a)
	if err != nil {
		return err
	}
	var in, out atomic.Int64
	c.count(a.Terminal, v, &in, &out)
	code, err := int32(0), errors.New("it panicked")
	defer func() { v.End(code, err, in.Load(), out.Load()) }()
	code, err = do(ctx)
	return err
}

// kinds are the kinds of accesses as operations.
var kinds = map[string]ops.Kind{
	"exec":         ops.Exec,
	"exec-sync":    ops.Exec,
	"attach":       ops.Attach,
	"port-forward": ops.Forward,
}

// count puts counters between a client and its process.
func (c *client) count(terminal bool, v Visit, in, out *atomic.Int64) {
	if c.stdin != nil {
		c.stdin = counted{c.stdin, in}
	}
	if c.stdout != nil {
		w := watched{WriteCloser: c.stdout, n: out}
		if terminal {
			w.seen = v.Wrote
		}
		c.stdout = w
	}
	if c.stderr != nil {
		c.stderr = watched{WriteCloser: c.stderr, n: out}
	}
	if c.resize != nil && terminal {
		c.resize = watchSizes(c.resize, v.Resized)
	}
}

// watchSizes passes sizes on, and shows each of them, until there are no more.
func watchSizes(from <-chan remotecommand.TerminalSize, seen func(width, height uint16)) <-chan remotecommand.TerminalSize {
	to := make(chan remotecommand.TerminalSize, 1)
	go func() {
		defer close(to)
		for size := range from {
			seen(size.Width, size.Height)
			select {
			case <-to: // the one before was not taken, and does not matter any more
			default:
			}
			to <- size
		}
	}()
	return to
}

// counted counts the input of a client.
type counted struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// watched counts the output to a client.
type watched struct {
	io.WriteCloser
	n    *atomic.Int64
	seen func(b []byte) // nil if the output is not recorded
}

// Write implements io.Writer.
func (w watched) Write(b []byte) (int, error) {
	n, err := w.WriteCloser.Write(b)
	w.n.Add(int64(n))
	if w.seen != nil && n > 0 {
		w.seen(b[:n])
	}
	return n, err
}
