// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"berth/internal/base/config"
	"berth/internal/heart/pod"
	"berth/internal/host/cgroup"
	"berth/internal/serve/access"
	"berth/internal/serve/stream"
)

// openAccess opens the log of who used a container.
func openAccess(w wings) *access.Log {
	return access.New(access.Config{
		File:     w.cfg.Audit.File,
		Open:     w.cfg.Audit.OnError == config.AuditAllow,
		Sessions: w.cfg.Audit.Sessions,
		Note:     w.heart.core.obs.Note,
		Probed:   w.metrics.Probed,
		Log:      w.log.Logger,
	})
}

// openStreams makes what runs commands in containers and connects clients with them.
func (s *serving) openStreams(w wings) (err error) {
	joiner := openJoiner(w.base, w.engine)
	s.streams, err = stream.New(stream.Config{
		Ops:       w.ops,
		Dir:       filepath.Join(w.cfg.State, "exec"),
		Target:    w.heart.core.Pods.Target,
		Processes: processes{w.engine.execs, w.engine.ctrd.Spec, w.containerd.reach},
		Joiner:    joiner,
		Stdio:     w.heart.stdios.of,
		Logger:    w.log.Logger,
		AccessLog: s.access,
	})
	if err != nil {
		return err
	}
	w.heart.stdios.endBy(s.streams.EndStdin)
	cfg := stream.ServerConfig{Address: w.cfg.Streams.Address, Logger: w.log.Logger}
	if cfg.TLS, err = stream.LoadTLS(w.cfg.Streams.CertFile, w.cfg.Streams.KeyFile, w.cfg.Streams.ClientCA); err != nil {
		return err
	}
	s.server = stream.NewServer(cfg, s.streams)
	return nil
}

// serveStreamSocket serves streams on streams.socket as well, if there is one. The socket is for
// berth's own user alone, as Admit asks for.
func (d *daemon) serveStreamSocket(ctx context.Context) error {
	return d.sockets.serve(ctx, "streams.socket", d.cfg.Streams.Socket, func(lis net.Listener) error {
		return d.server.Admit(ctx, lis)
	})
}

// streams is what CRI serves of package stream.
type streams struct {
	*stream.Server
	service *stream.Service
	target  func(id string) (pod.Target, error)
}

// ExecSync runs a command in a container. If it ends at its deadline in a container that is frozen,
// the error says so: nothing else does, since the command is frozen as well.
func (s streams) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stream.Result, error) {
	r, err := s.service.ExecSync(ctx, id, cmd, timeout)
	if !errors.Is(err, context.DeadlineExceeded) {
		return r, err
	}
	if t, terr := s.target(id); terr == nil && t.Process.Pid != 0 {
		if by := cgroup.FrozenBy(int(t.Process.Pid)); by != "" {
			err = fmt.Errorf("%w: the container is frozen by cgroup %s", err, by)
		}
	}
	return r, err
}
