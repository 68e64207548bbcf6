// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/retry"
	"berth/internal/heart/pod"
	"berth/internal/host/spec"
)

// interval is how often everything is compared, besides sandboxes with an event.
const interval = time.Minute

// linkInterval is how often the link is looked at, which others can take away.
const linkInterval = 2 * time.Second

// Config holds the settings and ports of a Service. All fields are required, except for those whose
// comment allows nil or "".
type Config struct {
	// Listen opens the socket at a path. It is not called where nothing is to be served.
	Listen func(path string) (*net.UnixListener, error)
	// Keep makes that socket again whenever others have removed its file, until ctx ends, and lets
	// serve answer on it. nil: it is not checked.
	Keep func(ctx context.Context, lis *net.UnixListener, serve func(net.Listener))
	// Link is where cAdvisor looks for containerd; "": nothing is served.
	Link string
	// State is a directory for volatile state: the socket cadvisor.sock, and the records of cgroups.
	State string
	// Cgroups is the directory of the hierarchy that cgroups are made in: one suffices for cAdvisor
	// to notice them.
	Cgroups string
	Pods    func() Pods // made after the service
	Runtime Runtime
	// CRI is the socket of CRI, which clients of CRI are told that come here.
	CRI string
	// Version answers clients that ask for containerd's version.
	Version string
	Log     *slog.Logger
}

// Service serves cAdvisor, from Open to Close.
type Service struct {
	cfg Config
	lis *net.UnixListener // nil: nothing is served
	// unlinked is why the link could not be made again, as far as that was logged. Run alone uses it.
	unlinked string
	groups   groups
	// inNamespace reports whether a thread is in the network namespace that is pinned at a path.
	inNamespace func(thread uint32, path string) bool

	mu      sync.Mutex
	pending map[string]bool // IDs that something happened to
	wake    retry.Wake
}

// Open reads the records of an earlier berth, opens the socket and makes the link. A socket or a
// link that cannot be made is logged, and nothing is served then. From here on clients can connect
// and wait for Run.
func Open(cfg Config) *Service {
	s := &Service{
		cfg:         cfg,
		groups:      groups{dir: filepath.Join(cfg.State, "cadvisor")},
		inNamespace: inNamespace,
		pending:     map[string]bool{},
		wake:        retry.NewWake(),
	}
	if err := s.groups.load(); err != nil {
		cfg.Log.Warn("cgroups that an earlier berth made for cAdvisor not read", "err", err)
	}
	if cfg.Link == "" {
		return s
	}
	if err := s.open(); err != nil {
		cfg.Log.Info("cAdvisor in the kubelet not served, it may not find the containers", "err", err)
	}
	return s
}

func (s *Service) socket() string { return filepath.Join(s.cfg.State, "cadvisor.sock") }

func (s *Service) open() error {
	lis, err := s.cfg.Listen(s.socket())
	if err != nil {
		return err
	}
	if err := link(s.cfg.Link, s.socket()); err != nil {
		return errors.Join(err, lis.Close(), os.Remove(s.socket()))
	}
	s.lis = lis
	return nil
}

// Close removes the link and the socket. The cgroups stay with the pods.
func (s *Service) Close() error {
	if s.lis == nil {
		return nil
	}
	err := errors.Join(unlink(s.cfg.Link, s.socket()), os.Remove(s.socket()))
	if cerr := s.lis.Close(); !errors.Is(cerr, net.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return err
}

// Look makes Run look at a sandbox, or at anything else, to which something has happened. It does
// not block.
func (s *Service) Look(id string) {
	if s.lis == nil || id == "" {
		return
	}
	s.mu.Lock()
	s.pending[id] = true
	s.mu.Unlock()
	s.wake.Up()
}

// Run answers cAdvisor, and makes and removes cgroups as pods come and go, until ctx ends. It is
// called once the records are restored.
func (s *Service) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.serve(ctx) }()
	s.lookAtAll(ctx)
	tick, link := time.NewTicker(interval), time.NewTicker(linkInterval)
	defer tick.Stop()
	defer link.Stop()
	for {
		select {
		case err := <-served:
			return err // even if ctx has ended
		case <-s.wake:
			for id := range s.takePending() {
				s.look(ctx, id)
			}
		case <-link.C:
			s.linkAgain()
		case <-tick.C:
			s.lookAtAll(ctx)
		}
	}
}

// linkAgain makes the link again if others have taken it away. A file that they have put into its
// place stays.
func (s *Service) linkAgain() {
	if s.lis == nil {
		return
	}
	if to, err := os.Readlink(s.cfg.Link); err == nil && to == s.socket() {
		return
	}
	text := "the link at which the cAdvisor in the kubelet looks for berth was removed or replaced by another process"
	err := link(s.cfg.Link, s.socket())
	switch {
	case err == nil:
		s.cfg.Log.Warn(text+"; it is made again", "link", s.cfg.Link)
		s.unlinked = ""
	case err.Error() != s.unlinked:
		s.cfg.Log.Error(text+", and cannot be made again; trying again", "err", err)
		s.unlinked = err.Error()
	}
}

func (s *Service) takePending() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.pending
	s.pending = map[string]bool{}
	return ids
}

func (s *Service) lookAtAll(ctx context.Context) {
	for _, id := range s.groups.ids() {
		s.look(ctx, id)
	}
	if s.lis == nil {
		return
	}
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	for _, p := range s.cfg.Pods().ListPodSandbox(&runtimeapi.PodSandboxFilter{State: ready}) {
		if _, ok := s.groups.get(p.GetId()); !ok {
			s.look(ctx, p.GetId())
		}
	}
}

// look makes the cgroup of a sandbox that should have one. It removes the cgroup of any other
// sandbox, and one whose thread, as cAdvisor knows it, has gone. A cgroup is made, or made anew,
// once there is a thread: if there is none, cAdvisor asks again and again for seconds, and looks at
// no other new cgroup meanwhile. Where nothing is served, no sandbox should have one.
func (s *Service) look(ctx context.Context, id string) {
	t, err := s.cfg.Pods().Target(id)
	if s.lis == nil || err != nil || t.ID != id || !needsGroup(t) {
		s.report(s.groups.remove(id))
		return
	}
	made, ok := s.groups.get(id)
	dir := made.Dir // even if the handler has another cgroup driver by now
	if !ok {
		path, err := spec.CgroupDir(t.Handler.SystemdCgroup, t.CgroupParent, id)
		if err != nil {
			s.report(fmt.Errorf("name the cgroup of sandbox %s for cAdvisor: %w", id, err))
			return
		}
		dir = filepath.Join(s.cfg.Cgroups, path)
	}
	if ok && made.Thread != 0 && !s.inNamespace(made.Thread, t.NetNS) {
		if err := s.groups.remove(id); err != nil {
			s.report(err)
			return
		}
		ok = false
	}
	if !ok {
		if _, err := s.thread(ctx, t); err != nil {
			s.cfg.Log.Debug("cAdvisor has no network figures of a pod for now", "id", id, "err", err)
			return // the pod gets another shim with the next container
		}
	}
	if err := s.groups.make(id, dir); !errors.Is(err, fs.ErrNotExist) {
		s.report(err)
	}
}

func (s *Service) report(err error) {
	if err != nil {
		s.cfg.Log.Warn("network figures of a pod in cAdvisor may be wrong", "err", err)
	}
}

// needsGroup reports whether t is a sandbox that cAdvisor would not find otherwise: one that has a
// network and no process, below a cgroup of the pod's.
func needsGroup(t pod.Target) bool {
	return t.Running && t.Pinned && t.NetNS != "" && t.CgroupParent != ""
}

// thread returns the ID of a thread that is in the network namespace of the sandbox t, which has no
// process.
func (s *Service) thread(ctx context.Context, t pod.Target) (uint32, error) {
	thread, err := s.cfg.Runtime.NetworkThread(ctx, t.ID)
	if err != nil {
		return 0, err
	}
	if !s.inNamespace(thread, t.NetNS) {
		return 0, fmt.Errorf("thread %d of the shim of sandbox %s is not in its network namespace: %w", thread, t.ID, errdefs.ErrNotFound)
	}
	return thread, nil
}

func inNamespace(thread uint32, path string) bool {
	one, err := os.Stat("/proc/" + strconv.FormatUint(uint64(thread), 10) + "/ns/net")
	if err != nil {
		return false
	}
	two, err := os.Stat(path)
	return err == nil && os.SameFile(one, two)
}
