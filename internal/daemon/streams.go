// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/config"
	"berth/internal/heart/pod"
	"berth/internal/host/cgroup"
	"berth/internal/host/logs"
	"berth/internal/serve/access"
	"berth/internal/serve/stream"
)

// openAccess opens the log of who used a container.
func (d *daemon) openAccess() error {
	d.access = access.New(access.Config{
		File:     d.cfg.Audit.File,
		Open:     d.cfg.Audit.OnError == config.AuditAllow,
		Sessions: d.cfg.Audit.Sessions,
		Note:     d.core.obs.Note,
		Probed:   d.metrics.Probed,
		Log:      d.log.Logger,
	})
	return nil
}

// openStreams makes what runs commands in containers and connects clients with them.
func (d *daemon) openStreams() (err error) {
	joiner := d.openJoiner()
	d.streams, err = stream.New(stream.Config{
		Dir:       filepath.Join(d.cfg.State, "exec"),
		Target:    d.core.Pods.Target,
		Processes: processes{d.ctrd, d},
		Joiner:    joiner,
		Stdio:     d.stdios.of,
		Logger:    d.log.Logger,
		AccessLog: d.access,
	})
	if err != nil {
		return err
	}
	cfg := stream.ServerConfig{Address: d.cfg.Streams.Address, Logger: d.log.Logger}
	if cfg.TLS, err = stream.LoadTLS(d.cfg.Streams.CertFile, d.cfg.Streams.KeyFile); err != nil {
		return err
	}
	d.server = stream.NewServer(cfg, d.streams)
	return nil
}

// serveStreamSocket serves streams on streams.socket as well, if there is one. The socket is for
// berth's own user alone, as Admit asks for.
func (d *daemon) serveStreamSocket(ctx context.Context) error {
	if d.cfg.Streams.Socket == "" {
		<-ctx.Done()
		return nil
	}
	lis, err := newListener(d.cfg.Streams.Socket)
	if err != nil {
		return err
	}
	s := &socket{of: "streams.socket", lis: unlinking{lis, d.cfg.Streams.Socket}, path: d.cfg.Streams.Socket}
	admit := func(lis net.Listener) error { return d.server.Admit(ctx, lis) }
	var kept sync.WaitGroup
	defer kept.Wait()
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch() // also where clients can no longer be let in
	first := s.lis
	kept.Go(func() {
		d.keepSockets(watching, []*socket{s}, func(lis net.Listener) {
			if err := admit(lis); err != nil && watching.Err() == nil {
				d.log.Error("clients of streams are no longer let in on a socket that was made again", "socket", s.path, "err", err)
			}
		})
	})
	return admit(first)
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

// stdios plugs package logs into the controller, and finds the stdio of a container again for
// those that attach to it.
type stdios struct {
	// ended is called with the container whose stdin ended with an earlier berth.
	ended func(id string)

	mu   sync.Mutex
	open map[string]*logs.Log // by directory
}

func newStdios(ended func(id string)) *stdios {
	return &stdios{ended: ended, open: map[string]*logs.Log{}}
}

// Create makes the stdio of a container.
func (s *stdios) Create(o logs.Options) (pod.Stdio, error) { return s.add(logs.Create, o) }

// Open continues with the stdio that an earlier berth made.
func (s *stdios) Open(o logs.Options) (pod.Stdio, error) { return s.add(logs.Open, o) }

func (s *stdios) add(open func(logs.Options) (*logs.Log, error), o logs.Options) (pod.Stdio, error) {
	l, err := open(o)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[o.Dir] = l
	if l.StdinOver() {
		s.ended(filepath.Base(o.Dir))
	}
	return stdio{l, s, o.Dir}, nil
}

// RemoveAll removes the stdio that is in a directory.
func (s *stdios) RemoveAll(dir string) error {
	s.forget(dir)
	return logs.RemoveAll(dir)
}

func (s *stdios) forget(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, dir)
}

// of finds the stdio of a container by its ID, which is the name of the directory.
func (s *stdios) of(id string) (stream.Stdio, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for dir, l := range s.open {
		if filepath.Base(dir) == id {
			return attachable{l.Attachment()}, nil
		}
	}
	return nil, fmt.Errorf("the output of container %s is not there: %w", id, errdefs.ErrUnavailable)
}

// stdio is a container's stdio, which is forgotten when it is removed.
type stdio struct {
	*logs.Log
	of  *stdios
	dir string
}

// Remove closes and removes the stdio.
func (s stdio) Remove() error {
	s.of.forget(s.dir)
	return s.Log.Remove()
}

// attachable plugs a container's stdio into package stream.
type attachable struct{ logs.Attachment }

// Tee begins to copy what the container writes.
func (a attachable) Tee() (stream.Tee, error) {
	t, err := a.Attachment.Tee()
	if err != nil {
		return nil, err
	}
	return t, nil
}
