// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
	"berth/internal/base/ops"
	"berth/internal/base/retry"
	"berth/internal/engine/embed"
)

const (
	// containerdGrace is how long CRI is not served, at most, so that containerd is there when it
	// is.
	containerdGrace = 400 * time.Millisecond
	// containerdPatience is how long a call that makes something waits for containerd.
	containerdPatience = 2 * time.Second
)

// containerd is the way to containerd, which runs in this process or beside it, and may be away.
type containerd struct {
	base
	link     *link // whether it is there
	conn     *connection.Connection
	embedded atomic.Pointer[embed.Server] // nil until it runs, and where another one is configured
}

// embedConfig returns what the containerd in this process works on, but for its Program.
func (b base) embedConfig() embed.Config {
	proxies := map[string]embed.Proxy{}
	for name, s := range b.cfg.Snapshotters {
		proxies[name] = embed.Proxy{Address: s.Address, Root: cmp.Or(s.Root, b.cfg.Root)}
	}
	return embed.Config{
		Root:        filepath.Join(b.cfg.Root, "containerd"),
		State:       filepath.Join(b.cfg.State, "containerd"),
		SocketDir:   filepath.Join(b.cfg.State, "s"),
		Snapshotter: b.cfg.Containerd.Snapshotter,
		Proxies:     proxies,
		Libexec:     b.libexec,
		LeaveTasks:  !b.cfg.Tricks.SetAside,
		WriteLate:   !b.cfg.Tricks.WriteEarly,
		Debug:       b.cfg.Log.Level == "debug",
		Logger:      b.log.With("from", "containerd"),
	}
}

// openContainerd makes the connection to containerd, which is not there yet, and waits for nothing.
// The error says that the configuration cannot work.
func openContainerd(b base) (c *containerd, err error) {
	c = &containerd{base: b, link: newLink()}
	if address := b.cfg.Containerd.Address; address != "" {
		embed.BridgeLog(b.log.Logger, false)
		if c.conn, err = connection.Dial(address); err != nil {
			return nil, err
		}
		b.undo.add(c.conn.Close)
		return c, nil
	}
	if err := b.embedConfig().Check(); err != nil {
		return nil, err
	}
	c.conn = connection.Absent(errors.New("the containerd inside berth is starting"))
	b.undo.add(func() error {
		if s := c.embedded.Load(); s != nil {
			return s.Stop()
		}
		return nil
	})
	return c, nil
}

// The wait between two attempts to start the containerd in this process.
const (
	firstEmbed   = time.Second
	slowestEmbed = 30 * time.Second
)

// start starts containerd in this process, and tries again when that fails: a disk may be full, and
// another process may use its directory. berth serves from the records meanwhile, and Status has
// the reason. It returns nil when ctx has ended.
func (c *containerd) start(ctx context.Context, cfg embed.Config) *embed.Server {
	for wait := range retry.Doubling(ctx.Done(), firstEmbed, slowestEmbed) {
		s, err := embed.Start(ctx, cfg)
		if err == nil {
			return s
		}
		if ctx.Err() != nil {
			return nil
		}
		c.conn.Set(err)
		c.log.Error("the containerd inside berth does not start; trying again", "err", err, "wait", wait)
	}
	return nil
}

// setAside reports whether a task is there although the containerd in this process does not know
// it.
func (c *containerd) setAside(ctx context.Context, id string) bool {
	s := c.embedded.Load()
	return s != nil && s.SetAside(ctx, id)
}

// away returns nil while berth is connected to containerd, and otherwise ErrUnavailable with the
// reason.
func (c *containerd) away() error {
	why := c.link.get()
	if why == nil {
		return nil
	}
	if closed := c.conn.Err(); closed != nil {
		return closed // it knows more
	}
	return fmt.Errorf("%w: %w", why, errdefs.ErrUnavailable)
}

// reach waits a little for containerd, for a call that needs it. Without containerd it returns
// ErrUnavailable, with the reason, and the client tries again.
func (c *containerd) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, containerdPatience)
	defer cancel()
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Containerd, What: "containerd (connection)", Then: "the call ends with the reason"})
	defer op.End()
	if c.link.await(ctx) == nil {
		return nil
	}
	return c.away()
}
