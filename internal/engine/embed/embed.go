// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/plugin"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/engine/aside"
)

// running guards the one server that a process can have.
var running struct {
	sync.Mutex
	root string // of the server, "" if there is none
}

// Server is containerd's server in this process, from Start to Stop.
type Server struct {
	cfg    Config
	client *containerd.Client
	parts  *loaded
	locks  []*os.File
	cancel context.CancelFunc // ends the context that the parts were made with
	failed chan error

	aside *aside.Tasks

	stop    sync.Once
	stopErr error
}

// Start opens the directories, loads the server, reconnects to the shims that are still running and
// listens on the API sockets. It returns when all of it works; the caller stops the server with
// Stop. ctx bounds only the start.
//
// Errors: ErrInvalidArgument for a Config that cannot work; ErrFailedPrecondition if a server runs
// in this process, or another process uses one of the directories. After an error nothing is left
// open, and Start may be tried again.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s, err := start(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start containerd in %s: %w", cfg.Root, err)
	}
	return s, nil
}

func start(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if err := claim(cfg.Root); err != nil {
		return nil, err
	}
	// The parts keep their context for as long as they live; the caller's only bounds the start.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{cfg: cfg, cancel: cancel, failed: make(chan error, 1)}
	inTime := context.AfterFunc(ctx, cancel)
	err = s.open(life)
	if !inTime() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// open carries out Start; Stop undoes as much of it as was done.
func (s *Server) open(life context.Context) error {
	if err := s.cfg.prepare(); err != nil {
		return err
	}
	// State as well as Root: otherwise the API sockets of a second server with the same State would
	// silently replace those of the first.
	for _, dir := range []string{s.cfg.Root, s.cfg.State} {
		f, err := lock(dir)
		if err != nil {
			return err
		}
		s.locks = append(s.locks, f)
	}
	BridgeLog(s.cfg.Logger, s.cfg.Debug)
	fail := s.fail
	bridge.fatal.Store(&fail)

	var err error
	hide := aside.Hide
	if s.cfg.LeaveTasks {
		hide = aside.Leave
	}
	if s.aside, err = hide(life, s.cfg.State); err != nil {
		return err
	}
	if s.parts, err = load(life, s.cfg); err != nil {
		return err
	}
	s.client, err = containerd.New(s.cfg.address(),
		containerd.WithInMemoryServices(plugin.NewContext(life, s.parts.set, nil)),
		containerd.WithDefaultNamespace(Namespace))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	s.sweep(life) // before a client can make a layer
	if err := s.parts.serve(life); err != nil {
		return err
	}
	for _, socket := range []string{s.cfg.address(), s.cfg.ttrpcAddress()} {
		if err := os.Chmod(socket, 0o600); err != nil {
			return fmt.Errorf("make socket %s private: %w", socket, err)
		}
	}
	s.parts.ready.Wait()
	s.aside.Use(s.loads, s.cleansUp)
	return s.serves(life)
}

// serves waits until both API servers serve. One that is stopped before closes its listener only
// later, when the next server may have its socket's name.
func (s *Server) serves(ctx context.Context) error {
	if _, err := s.client.Version(ctx); err != nil {
		return fmt.Errorf("call the server at %s: %w", s.cfg.address(), err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.cfg.ttrpcAddress())
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	if err := client.Call(ctx, "berth", "Ping", &emptypb.Empty{}, &emptypb.Empty{}); !errdefs.IsNotImplemented(errgrpc.ToNative(err)) {
		return fmt.Errorf("call the server at %s: %w", s.cfg.ttrpcAddress(), err)
	}
	return nil
}

// claim makes this the process's only server.
func claim(root string) error {
	running.Lock()
	defer running.Unlock()
	if running.root != "" {
		return fmt.Errorf("a server runs in this process already, in %s, and containerd's plug-in registry allows only one: stop that first: %w",
			running.root, errdefs.ErrFailedPrecondition)
	}
	running.root = root
	return nil
}

// fail reports the first fatal error. It never blocks: it is called while containerd logs.
func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// Client is the client of this server, most of whose services are function calls.
// Its owner is the Server: do not close it. The namespace of a call is taken from
// the call's context; WithNamespace(ctx, Namespace) is the one to use.
func (s *Server) Client() *containerd.Client { return s.client }

// Address is the path of the gRPC API socket, for ctr and other clients of the same user.
func (s *Server) Address() string { return s.cfg.address() }

// Snapshotter is the name of the snapshotter that images are unpacked with.
func (s *Server) Snapshotter() string { return s.cfg.Snapshotter }

// Failed yields at most one error: that a listener of the server broke. Shims can
// then no longer deliver events, and only a Stop and a new Start repairs that.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop closes the listeners and the databases, and returns when they are closed. Shims and
// containers stay alive. Calls in flight fail. Stop may be called more than once; every call
// returns the result of the first.
func (s *Server) Stop() error {
	s.stop.Do(func() {
		var errs []error
		s.cancel()
		if s.aside != nil {
			s.aside.Stop()
		}
		if s.client != nil {
			errs = append(errs, s.client.Close())
		}
		if s.parts != nil {
			errs = append(errs, s.parts.close())
		}
		bridge.fatal.Store(nil)
		for _, f := range s.locks {
			errs = append(errs, f.Close())
		}
		running.Lock()
		running.root = ""
		running.Unlock()
		if err := errors.Join(errs...); err != nil {
			s.stopErr = fmt.Errorf("stop containerd in %s: %w", s.cfg.Root, err)
		}
	})
	return s.stopErr
}
