// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/budget"
	"berth/internal/base/execproc"
	"berth/internal/base/ops"
	"berth/internal/heart/pod"
)

// stopTimeout is how long Run waits for processes to end when its context has ended. Processes that
// have not ended by then are left to the next berth.
const stopTimeout = 2 * time.Second

// Key and Request are also the engine's: see package execproc.
type (
	Key     = execproc.Key
	Request = execproc.Request
)

// Processes makes exec processes and asks about them. Each method returns when its context ends,
// even if the shim does not answer. They return ErrNotFound if the process does not exist, or its
// task is gone.
type Processes interface {
	// Spec is the stored OCI specification of a container.
	Spec(ctx context.Context, id string) (*specs.Spec, error)
	// CreateExec makes a process, which waits to be started.
	CreateExec(ctx context.Context, key Key, r Request) error
	// StartExec lets the process run. The shim has opened the FIFOs when it returns.
	StartExec(ctx context.Context, key Key) error
	// WaitExec returns when the process has ended, with its exit code.
	WaitExec(ctx context.Context, key Key) (code uint32, err error)
	// KillExec kills the process.
	KillExec(ctx context.Context, key Key) error
	// DeleteExec deletes the process, which has ended or was never started.
	DeleteExec(ctx context.Context, key Key) error
	// CloseExecStdin closes the shim's own end of the standard input.
	CloseExecStdin(ctx context.Context, key Key) error
	// ResizeExec sets the size of the terminal.
	ResizeExec(ctx context.Context, key Key, width, height uint16) error
}

// Config holds the settings and ports of a Service.
type Config struct {
	// Dir is for the FIFOs of exec processes. It belongs to this package alone.
	Dir string
	// Target describes a container or a sandbox by its ID or the beginning of one.
	Target    func(id string) (pod.Target, error)
	Processes Processes
	// Joiner makes processes of ExecSync that need no shim; nil: the shim makes all.
	Joiner Joiner
	// Stdio returns the stdio of a running container.
	Stdio  func(id string) (Stdio, error)
	Logger *slog.Logger
	// AccessLog may be nil: no record is kept.
	AccessLog AccessLog
	// Ops lists the sessions; nil: a list that nothing else knows.
	Ops *ops.List
}

// Service runs commands in containers. Its methods may be called from any goroutine. Processes that
// they start live until Run's context ends at the latest.
type Service struct {
	cfg   Config
	pipes func(dir string, want streams) (*pipes, error)
	left  []Key // processes of an earlier berth, until Run
	dial  func(ctx context.Context, netns string, port int) (halfConn, error)
	shares
	starts *starts

	life     context.Context // of calls about exec processes
	end      context.CancelFunc
	stopping chan struct{} // closed when Run's context ends

	mu struct {
		sync.Mutex
		stopped  bool
		all      int            // processes, and calls about a container's own
		attached map[string]int // clients by container
		idle     chan struct{}  // closed when stopped and nothing is under way
	}
}

// New makes a service. It notes the processes of an earlier berth in cfg.Dir, which Run ends.
func New(cfg Config) (*Service, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of exec processes: %w", err)
	}
	left, err := leftovers(cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := newService(cfg, newShares())
	s.left = left
	return s, nil
}

func newService(cfg Config, of shares) *Service {
	if cfg.Ops == nil {
		cfg.Ops = &ops.List{}
	}
	s := &Service{
		cfg:      cfg,
		pipes:    openFIFOs,
		dial:     dialIn,
		shares:   of,
		starts:   newStarts(),
		stopping: make(chan struct{}),
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.mu.attached = map[string]int{}
	s.mu.idle = make(chan struct{})
	return s
}

// Run ends the processes of an earlier berth. When ctx ends, it ends every exec process, and
// returns once they have ended, or after two seconds. It returns nil. Call it once.
func (s *Service) Run(ctx context.Context) error {
	for _, key := range s.left {
		p := s.leftover(key)
		// It has not stopped. The pod may not be known yet, and the container stands for it.
		p.place, _ = s.enterAnyway(s.commands, key.Container)
		go p.finish()
	}
	<-ctx.Done()
	close(s.stopping)
	s.mu.Lock()
	s.mu.stopped = true
	s.checkIdleLocked()
	s.mu.Unlock()
	t := time.AfterFunc(stopTimeout, s.end)
	defer t.Stop()
	<-s.mu.idle
	s.end()
	return nil
}

// place is one of a budget, which a process or a client has.
type place struct {
	s   *Service
	of  *budget.Budget
	pod string
}

// enter takes a place for one process or client more. The error is ErrResourceExhausted when there
// are too many already, and ErrUnavailable when the service has stopped. The caller leaves it.
func (s *Service) enter(of *budget.Budget, pod string) (place, error) {
	if err := of.Take(pod, 1); err != nil {
		return place{}, err
	}
	p, err := s.arrive(of, pod)
	if err != nil {
		of.Give(pod, 1)
	}
	return p, err
}

// enterAnyway is enter for a process that exists already or that others wait for: it is never
// refused for its share.
func (s *Service) enterAnyway(of *budget.Budget, pod string) (place, error) {
	p, err := s.arrive(of, pod)
	if err == nil {
		of.TakeAnyway(pod, 1)
	}
	return p, err
}

func (s *Service) arrive(of *budget.Budget, pod string) (place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.stopped {
		return place{}, fmt.Errorf("berth stops: %w", errdefs.ErrUnavailable)
	}
	s.mu.all++
	return place{s, of, pod}, nil
}

// leave gives the place back.
func (p place) leave() {
	p.of.Give(p.pod, 1)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.mu.all--
	p.s.checkIdleLocked()
}

func (s *Service) checkIdleLocked() {
	if s.mu.stopped && s.mu.all == 0 {
		close(s.mu.idle)
	}
}

// container describes a container that runs.
func (s *Service) container(id string) (pod.Target, error) {
	t, err := s.cfg.Target(id)
	switch {
	case errdefs.IsNotFound(err):
		return t, fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound)
	case err != nil:
		return t, err
	case t.ID == t.PodID:
		return t, fmt.Errorf("%s is a sandbox, not a container: %w", id, errdefs.ErrNotFound)
	case !t.Running:
		return t, fmt.Errorf("container %s is not running: %w", t.ID, errdefs.ErrFailedPrecondition)
	}
	return t, nil
}
