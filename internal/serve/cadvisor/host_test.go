// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
)

// host is a host with pods, whose shims have threads in their network namespaces.
type host struct {
	t   *testing.T
	dir string

	mu      sync.Mutex
	pods    map[string]pod.Target
	threads map[string]uint32 // of shims that run, by sandbox
	inside  map[uint32]string // the network namespaces of threads
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{
		t:       t,
		dir:     t.TempDir(),
		pods:    map[string]pod.Target{},
		threads: map[string]uint32{},
		inside:  map[uint32]string{},
	}
	for _, d := range []string{"cgroups/pods", "run"} {
		if err := os.MkdirAll(filepath.Join(h.dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *host) ListPodSandbox(*runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*runtimeapi.PodSandbox
	for id, t := range h.pods {
		if t.ID == t.PodID && t.Running {
			list = append(list, &runtimeapi.PodSandbox{Id: id})
		}
	}
	return list
}

func (h *host) Target(id string) (pod.Target, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for full, t := range h.pods {
		if strings.HasPrefix(full, id) {
			return t, nil
		}
	}
	return pod.Target{}, fmt.Errorf("container or sandbox %q: %w", id, errdefs.ErrNotFound)
}

func (h *host) NetworkThread(_ context.Context, id string) (uint32, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if thread := h.threads[id]; thread != 0 {
		return thread, nil
	}
	return 0, fmt.Errorf("shim of %s: %w", id, errdefs.ErrNotFound)
}

func (h *host) TaskState(_ context.Context, id string) (pod.TaskState, error) {
	if id == "virtual" {
		return pod.TaskState{Pid: 77, Running: true}, nil
	}
	return pod.TaskState{}, fmt.Errorf("task %s: %w", id, errdefs.ErrNotFound)
}

// run puts a sandbox without a process, or changes one.
func (h *host) run(id string, change ...func(t *pod.Target)) {
	t := pod.Target{
		ID:           id,
		PodID:        id,
		Pinned:       true,
		Running:      true,
		NetNS:        "netns-" + id,
		CgroupParent: "/pods",
		PodConfig:    &runtimeapi.PodSandboxConfig{Labels: map[string]string{"io.kubernetes.pod.name": id}},
		Ended:        make(chan struct{}),
	}
	for _, f := range change {
		f(&t)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pods[id] = t
}

func (h *host) remove(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pods, id)
}

// shim has a thread take the place of that of the shim before it; 0: the shim has died.
func (h *host) shim(id string, thread uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.inside, h.threads[id])
	h.threads[id] = thread
	if thread != 0 {
		h.inside[thread] = "netns-" + id
	}
}

func (h *host) has(thread uint32, path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inside[thread] == path
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

func (h *host) config() Config {
	return Config{
		Listen: func(path string) (*net.UnixListener, error) {
			_ = os.Remove(path) // of a berth that was killed
			lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				lis.SetUnlinkOnClose(false)
			}
			return lis, err
		},
		Link:    h.path("link"),
		State:   h.path("run"),
		Cgroups: h.path("cgroups"),
		Pods:    func() Pods { return h },
		Runtime: h,
		Version: "v1",
		Log:     slog.New(slog.DiscardHandler),
	}
}

// berth is a service that runs.
type berth struct {
	*Service
	kill  func()
	ended chan struct{} // closed when Run has returned
}

func (h *host) start(change ...func(c *Config)) berth {
	h.t.Helper()
	cfg := h.config()
	for _, f := range change {
		f(&cfg)
	}
	b := berth{Service: Open(cfg), ended: make(chan struct{})}
	b.inNamespace = h.has
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() {
		defer close(b.ended)
		ran <- b.Run(ctx)
	}()
	b.kill = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			h.t.Error(err)
		}
		if b.lis != nil {
			_ = b.lis.Close()
		}
	})
	h.t.Cleanup(b.kill)
	return b
}

// group identifies the cgroup of a sandbox: a cgroup that is made anew is another one. "": there is
// none.
func (h *host) group(id string) string {
	st, err := os.Stat(h.path("cgroups/pods/" + id))
	if err != nil {
		return ""
	}
	return st.ModTime().String()
}

func (h *host) until(what string, ok func() bool) {
	h.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	h.t.Fatalf("still not: %s", what)
}

// ask asks as cAdvisor does, which then knows the thread.
func (h *host) ask(id string) (uint32, error) {
	h.t.Helper()
	conn, err := grpc.NewClient("unix://"+h.path("link"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	r, err := tasksapi.NewTasksClient(conn).Get(h.t.Context(), &tasksapi.GetRequest{ContainerID: id})
	return r.GetProcess().GetPid(), err
}

func (h *host) records() []string {
	h.t.Helper()
	files, err := os.ReadDir(h.path("run/cadvisor"))
	if err != nil {
		h.t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}
