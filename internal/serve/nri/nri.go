// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
	"berth/internal/base/ops"
	"berth/internal/heart/pod"
)

const (
	// maxEvents is how many ends and removals may wait for plug-ins. Beyond it the oldest are dropped:
	// a plug-in that is so slow is disconnected long before, unless it has asked not to be.
	maxEvents = 10_000
	// maxQueued is how many requests may wait for plug-ins to answer those before them.
	maxQueued = 1000
	// requestTimeout bounds each update and eviction that a plug-in asks for.
	requestTimeout = 10 * time.Second
	// specTimeout bounds the question for the specification of one container when berth starts, and
	// specsTimeout those for all of them: plug-ins are served also if containerd does not answer.
	specTimeout  = 2 * time.Second
	specsTimeout = 10 * time.Second
	// evictGrace is how long an evicted container has to end before it is killed.
	evictGrace = 5 * time.Second
)

// Pods is the pod controller, as far as plug-ins need it.
type Pods interface {
	ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox
	ListContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container
	Target(id string) (pod.Target, error)
	StopContainer(ctx context.Context, id string, timeout time.Duration) error
	UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error
	UpdatePodSandboxResources(ctx context.Context, id string, overhead, resources *runtimeapi.LinuxContainerResources) error
}

// Config holds the settings and ports of a Service.
type Config struct {
	// Socket is the path of the socket on which plug-ins register. Root alone may use it.
	Socket string
	// PluginDir holds plug-ins that are started with berth, and PluginConfigDir their
	// configurations; "" for none.
	PluginDir       string
	PluginConfigDir string
	// RequestTimeout bounds the answer of one plug-in to one request, and RegistrationTimeout the
	// time between its connection and its registration.
	RequestTimeout      time.Duration
	RegistrationTimeout time.Duration
	Version             string // berth's
	// Clock has the wall time that plug-ins are told; nil: that of this process.
	Clock *clock.Clock

	// Pods returns the controller, which is made after its hooks. It is called from Run on.
	Pods func() Pods
	// Spec is the stored OCI specification of a container.
	Spec func(ctx context.Context, id string) (*specs.Spec, error)
	// InjectCDI adds CDI devices to a specification; nil: plug-ins cannot ask for any.
	InjectCDI func(spec *specs.Spec, devices []string) error
	Logger    *slog.Logger
}

// Service relays the life of pods to plug-ins.
type Service struct {
	cfg     Config
	plugins *adaptation.Adaptation
	known   *registry
	events  *queue[event]
	asked   *requests
	// turn is held over each relay. The adaptation relays one request at a time, and does not look
	// at contexts while it waits for its turn.
	turn *semaphore.Weighted
	// queued is how many requests are relayed, or wait for their turn.
	queued atomic.Int64
	// evicted are the evictions that plug-ins requested in their answers since turn was taken. Only
	// the holder of turn may use it.
	evicted []*api.ContainerEviction
	// started is closed once the plug-ins of PluginDir were started for the first time.
	started     chan struct{}
	startedOnce sync.Once
	// socket is the file of the socket as it was made; nil while plug-ins are not served.
	socket atomic.Pointer[os.FileInfo]
}

var _ pod.Hooks = (*Service)(nil)

// New makes a service. Plug-ins are served when it runs. There is one in a process, because the
// library keeps its log and its timeouts in variables of its own.
func New(cfg Config) (*Service, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.New(nil)
	}
	s := &Service{
		cfg:    cfg,
		known:  newRegistry(),
		events: newQueue[event](maxEvents),
		asked:  newRequests(),
		turn:   semaphore.NewWeighted(1),

		started: make(chan struct{}),
	}
	logTo.Store(cfg.Logger)
	adaptation.SetPluginRequestTimeout(cfg.RequestTimeout)
	adaptation.SetPluginRegistrationTimeout(cfg.RegistrationTimeout)
	var err error
	s.plugins, err = adaptation.New("berth", cfg.Version, s.synchronize, s.update,
		adaptation.WithSocketPath(cfg.Socket),
		adaptation.WithPluginPath(cfg.PluginDir),
		adaptation.WithPluginConfigPath(cfg.PluginConfigDir),
		s.evictions())
	if err != nil {
		return nil, fmt.Errorf("make the adaptation to NRI: %w", err)
	}
	return s, nil
}

// Run serves plug-ins until ctx ends, and returns nil then. The records of pods have to be
// restored. After an error it may be run again.
func (s *Service) Run(ctx context.Context) error {
	s.restore(ctx)
	err := s.plugins.Start()
	s.startedOnce.Do(func() { close(s.started) })
	if err != nil {
		return fmt.Errorf("serve NRI plug-ins on %s: %w", s.cfg.Socket, err)
	}
	defer s.plugins.Stop()
	if err := os.Chmod(s.cfg.Socket, 0o600); err != nil {
		return fmt.Errorf("serve NRI plug-ins: %w", err)
	}
	made, err := os.Stat(s.cfg.Socket)
	if err != nil {
		return fmt.Errorf("serve NRI plug-ins: %w", err)
	}
	s.socket.Store(&made)
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		s.asked.run(ctx, s.carryOut)
	}()
	for e := range s.events.all(ctx) {
		s.deliver(ctx, e)
	}
	<-carried
	return nil
}

// Problem returns a message if plug-ins cannot find the socket any more, because others have
// removed its file; "" if they can, as far as that can be told. The library has no way to make it
// again that keeps the plug-ins that are connected.
func (s *Service) Problem() string {
	made := s.socket.Load()
	if made == nil {
		return ""
	}
	now, err := os.Stat(s.cfg.Socket)
	if err == nil && os.SameFile(*made, now) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return "the socket for NRI plug-ins, " + s.cfg.Socket + ", was removed or replaced by another process: those that are connected stay so, and no other can connect until berth is restarted"
}

// PluginsStarted returns a channel that is closed once Run has started the plug-ins of PluginDir
// for the first time: each of them takes part in every request from then on, or has failed to
// register.
func (s *Service) PluginsStarted() <-chan struct{} { return s.started }

// restore registers the pods and containers that an earlier berth has left. If a specification
// cannot be read because containerd does not answer in time, the container is described by its
// record.
func (s *Service) restore(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, specsTimeout)
	defer cancel()
	for _, p := range s.cfg.Pods().ListPodSandbox(nil) {
		t, err := s.cfg.Pods().Target(p.GetId())
		if err == nil && t.Running {
			s.known.addPod(podOf(t))
			s.refreshPod(t.ID)
		}
	}
	for _, c := range s.cfg.Pods().ListContainers(nil) {
		t, err := s.cfg.Pods().Target(c.GetId())
		if err != nil || c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			continue
		}
		oci, err := s.spec(ctx, t.ID)
		if err != nil {
			s.cfg.Logger.Warn("specification of a container not known to NRI plug-ins", "id", t.ID, "err", err)
			oci = &specs.Spec{}
		}
		ct := containerOf(t, oci)
		ct.State, ct.CreatedAt = api.ContainerState_CONTAINER_CREATED, c.GetCreatedAt()
		s.known.restored(ct)
		s.refresh(t.ID)
	}
}

func (s *Service) spec(ctx context.Context, id string) (*specs.Spec, error) {
	ctx, cancel := context.WithTimeout(ctx, specTimeout)
	defer cancel()
	return s.cfg.Spec(ctx, id)
}

// refreshPod applies changes of a pod from before it was known here.
func (s *Service) refreshPod(id string) {
	t, err := s.cfg.Pods().Target(id)
	if err != nil {
		s.known.remove(id)
	} else if !t.Running {
		s.known.endPod(id)
	}
}

// refresh applies changes of a container from before it was known here, because berth serves while
// the specification is read. From now on the hooks make the changes.
func (s *Service) refresh(id string) {
	t, err := s.cfg.Pods().Target(id)
	if err != nil {
		s.known.remove(id)
		return
	}
	s.known.change(id, func(c *api.Container) {
		select {
		case <-t.Ended:
			c.State, c.Pid = api.ContainerState_CONTAINER_STOPPED, 0
			return
		default:
		}
		if t.Running && c.State != api.ContainerState_CONTAINER_STOPPED {
			c.State, c.Pid = api.ContainerState_CONTAINER_RUNNING, t.Process.Pid
		}
	})
}

// relay makes one request to all plug-ins, and keeps new ones from being synchronised meanwhile.
func (s *Service) relay(ctx context.Context, f func(context.Context) error) error {
	if s.queued.Add(1) > maxQueued {
		s.queued.Add(-1)
		return fmt.Errorf("%d requests wait for NRI plug-ins already: %w", maxQueued, errdefs.ErrUnavailable)
	}
	defer s.queued.Add(-1)
	if err := s.await(ctx); err != nil {
		return fmt.Errorf("wait for NRI plug-ins to answer %d earlier requests: %w", s.queued.Load(), err)
	}
	defer s.turn.Release(1)
	s.evicted = nil
	defer s.plugins.BlockPluginSync().Unblock()
	return f(ctx)
}

// await waits until the plug-ins have answered the requests before.
func (s *Service) await(ctx context.Context) error {
	if s.turn.TryAcquire(1) {
		return nil
	}
	_, op := ops.Begin(ctx, ops.Work{Kind: ops.Wait, What: "the NRI plug-ins to answer earlier requests"})
	defer op.End()
	return s.turn.Acquire(ctx, 1)
}

// SandboxRun relays RunPodSandbox. An error of a plug-in fails the call.
func (s *Service) SandboxRun(ctx context.Context, t pod.Target) error {
	p := podOf(t)
	err := s.relay(ctx, func(ctx context.Context) error {
		s.known.addPod(p)
		return s.plugins.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: p})
	})
	if err != nil {
		return fmt.Errorf("NRI: %w", err)
	}
	return nil
}

// AdjustSpec relays CreateContainer, and applies the answers of the plug-ins.
func (s *Service) AdjustSpec(ctx context.Context, t pod.Target, _ *runtimeapi.ContainerConfig, oci *specs.Spec) error {
	ct := containerOf(t, oci)
	ct.State, ct.CreatedAt = api.ContainerState_CONTAINER_CREATED, s.cfg.Clock.Wall(s.cfg.Clock.Now()).UnixNano()
	var resp *api.CreateContainerResponse
	var evict []*api.ContainerEviction
	err := s.relay(ctx, func(ctx context.Context) (err error) {
		p := s.podOf(t)
		// A copy: the adaptation changes the maps of the container, which are the specification's.
		asked := proto.Clone(ct).(*api.Container)
		resp, err = s.plugins.CreateContainer(ctx, &api.CreateContainerRequest{Pod: p, Container: asked})
		evict = s.evicted
		// A container that is not made in the end is removed again by Removed.
		s.known.addContainer(ct)
		return err
	})
	if err != nil {
		return fmt.Errorf("NRI: %w", err)
	}
	adjusted, err := s.adjust(oci, resp.GetAdjust())
	if err != nil {
		return fmt.Errorf("NRI: adjustments by plug-ins: %w", err)
	}
	s.ask(resp.GetUpdate(), evict)
	*oci = *adjusted
	final := containerOf(t, oci)
	final.State, final.CreatedAt = ct.State, ct.CreatedAt
	s.known.addContainer(final)
	return nil
}

// Created relays PostCreateContainer, later.
func (s *Service) Created(_ context.Context, t pod.Target) {
	s.later(event{kind: created, pod: s.podOf(t), container: s.known.container(t.ID)})
}

// Starting relays StartContainer. An error of a plug-in fails the start.
func (s *Service) Starting(ctx context.Context, t pod.Target) error {
	err := s.relay(ctx, func(ctx context.Context) error {
		return s.plugins.StartContainer(ctx, &api.StartContainerRequest{Pod: s.podOf(t), Container: s.known.container(t.ID)})
	})
	if err != nil {
		return fmt.Errorf("NRI: %w", err)
	}
	return nil
}

// Started relays PostStartContainer, later.
func (s *Service) Started(_ context.Context, t pod.Target) {
	ct, known := s.known.change(t.ID, func(c *api.Container) {
		c.Pid, c.StartedAt = t.Process.Pid, s.cfg.Clock.Wall(s.cfg.Clock.Now()).UnixNano()
		if c.State != api.ContainerState_CONTAINER_STOPPED { // its end may have been settled first
			c.State = api.ContainerState_CONTAINER_RUNNING
		}
	})
	if known { // it may have been removed meanwhile
		s.later(event{kind: started, pod: s.podOf(t), container: ct})
	}
}

// Ended relays StopContainer or StopPodSandbox, later.
func (s *Service) Ended(_ context.Context, t pod.Target, f exit.Fact) error {
	if t.ID == t.PodID {
		if p := s.known.endPod(t.ID); p != nil {
			s.later(event{kind: podStopped, pod: p})
		}
		return nil
	}
	first := false
	ct, known := s.known.change(t.ID, func(c *api.Container) {
		first = c.State != api.ContainerState_CONTAINER_STOPPED
		c.State, c.Pid = api.ContainerState_CONTAINER_STOPPED, 0
		c.FinishedAt, c.ExitCode, c.StatusReason = s.cfg.Clock.Wall(f.At).UnixNano(), int32(f.ExitCode()), f.Reason()
	})
	if known && first {
		s.later(event{kind: stopped, pod: s.podOf(t), container: ct})
	}
	return nil
}

// Removed relays RemoveContainer or RemovePodSandbox, later. It is called with the ID of every
// record that was deleted, even if its creation had failed. Ended may still be on its way: plug-ins
// are notified of the end first in any case.
func (s *Service) Removed(id string) {
	if p := s.known.endPod(id); p != nil {
		s.later(event{kind: podStopped, pod: p})
	}
	p, ct := s.known.remove(id)
	switch {
	case ct != nil:
		if ct.GetState() == api.ContainerState_CONTAINER_RUNNING {
			ct = proto.Clone(ct).(*api.Container)
			ct.State, ct.Pid = api.ContainerState_CONTAINER_STOPPED, 0
			s.later(event{kind: stopped, pod: p, container: ct})
		}
		s.later(event{kind: removed, pod: p, container: ct})
	case p != nil:
		s.later(event{kind: podRemoved, pod: p})
	}
}

// podOf returns a pod as plug-ins know it.
func (s *Service) podOf(t pod.Target) *api.PodSandbox {
	if p := s.known.pod(t.PodID); p != nil {
		return p
	}
	return podOf(t)
}

// logTo is where the library's log goes.
var logTo atomic.Pointer[slog.Logger]

func init() { nrilog.Set(logger{}) }

// logger passes on the library's log.
type logger struct{}

func (logger) log(ctx context.Context, level slog.Level, format string, args []any) {
	if to := logTo.Load(); to != nil {
		to.Log(ctx, level, "NRI: "+fmt.Sprintf(format, args...))
	}
}

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelDebug, format, args)
}

func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelDebug, format, args) // its log is verbose
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelWarn, format, args)
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelError, format, args)
}
