// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	shimapi "github.com/containerd/containerd/api/runtime/task/v3"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	taskPart = "io.containerd.runtime.v2.task"
	// sandboxPart starts shims that are sandboxes.
	sandboxPart = "io.containerd.sandbox.controller.v1.shim"
	shimPart    = "io.containerd.shim.v1.manager"

	// asidePrefix hides a bundle: containerd passes over names that begin with a dot.
	asidePrefix = ".aside-"
	// joinableVersion is the version of a shim's API from which on containerd needs no more than the
	// address of a shim to take up a task in it.
	joinableVersion = 3
	// startTimeout is how long a shim may take to answer before the server starts.
	startTimeout = 200 * time.Millisecond
	// answerTimeout is how long it may take later, when all shims of a node are asked.
	answerTimeout = time.Second
	// askAtOnce is how many shims are asked at the same time.
	askAtOnce = 128
)

// aside holds the tasks that containerd is given after its start. In its start it would ask for
// each task in turn, two at a time, and have the OCI runtime of each list its processes: a node
// with 500 pods would be without an answer for six seconds. For each task of a shim that hangs it
// would wait five seconds, and then end the task, since it takes such a shim for a dead one.
// Instead, the bundles of tasks are hidden from containerd by their names, so that it does not know
// the tasks. Once the shim has answered, the bundle gets its name back, and containerd is given the
// task.
//
// The same holds for shims that are sandboxes, whose bundles are in a directory of their own. An ID
// has a bundle in one of the two.
//
// Left to containerd are the bundles of shims that have ended, which it cleans up after, and of
// those that are not reached by ttrpc; and where it has to do more than to connect to a shim, the
// tasks whose shims answer at once.
type aside struct {
	mu     sync.Mutex
	tasks  map[string]*hidden // by ID
	closed bool

	running sync.WaitGroup // of what asks shims
	load    loader
	loading chan struct{}                              // holds a value for each task that is being loaded
	cleanUp func(ctx context.Context, h *hidden) error // after a shim that has ended; the bundle has its name back
}

// hidden is a task or a sandbox whose bundle is hidden.
type hidden struct {
	id, dir string        // dir is that of the bundle
	pod     string        // the sandbox in whose shim a task is; "" where there is none
	shim    *hidden       // that sandbox, if it is hidden, too
	once    sync.Once     // begins the first question
	asked   chan struct{} // closed after the first question, and what followed from its answer
	got     answer        // of the first question; to be read once asked is closed
	failed  bool          // it could not be loaded; only who tries it uses this, one after the other
}

// loader gives containerd a task whose shim runs, and whose bundle has its name back.
// errdefs.ErrNotFound says that containerd has no object for it.
type loader func(ctx context.Context, h *hidden) error

func (h *hidden) bundle() string { return filepath.Join(h.dir, h.id) }
func (h *hidden) path() string   { return filepath.Join(h.dir, asidePrefix+h.id) }

// gone reports whether there is no bundle any more.
func (h *hidden) gone() bool {
	_, shown := os.Lstat(h.bundle())
	_, there := os.Lstat(h.path())
	return errors.Is(shown, fs.ErrNotExist) && errors.Is(there, fs.ErrNotExist)
}

// show gives the bundle its name back.
func (h *hidden) show() error {
	if err := os.Rename(h.path(), h.bundle()); err != nil {
		if _, shown := os.Lstat(h.bundle()); shown != nil {
			return err
		}
	}
	return nil
}

// SetAside reports whether there is a task that containerd does not know, because its shim has not
// answered since the server was started. Unless the shim was asked before, it is asked now, which
// takes a second at most; when ctx ends before that, the task counts as set aside.
func (s *Server) SetAside(ctx context.Context, id string) bool {
	a := s.aside
	h := a.get(id)
	if h == nil {
		return false
	}
	a.begin(s.life, h)
	select {
	case <-h.asked:
	case <-ctx.Done():
	}
	return a.get(id) != nil
}

func (a *aside) get(id string) *hidden {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tasks[id]
}

func (a *aside) drop(h *hidden) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.tasks, h.id)
}

func (a *aside) all() []*hidden {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.tasks))
}

// run runs f in a goroutine that stop waits for. It returns false after stop.
func (a *aside) run(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.running.Go(f)
	}
	return !a.closed
}

// stop waits for what asks shims. The context it works under has ended.
func (a *aside) stop() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
}

func newAside() *aside {
	return &aside{tasks: map[string]*hidden{}, loading: make(chan struct{}, 2*goruntime.GOMAXPROCS(0))}
}

// setAside hides the bundles of tasks. It finds out side by side which shims have ended, which asks
// nothing of the others; where a question is needed it takes little more than startTimeout.
func setAside(ctx context.Context, cfg Config) (*aside, error) {
	a := newAside()
	found := sockets{served: map[string]func() bool{}}
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for _, part := range []string{taskPart, sandboxPart} {
		dir := filepath.Join(cfg.State, part, Namespace)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("look for tasks: %w", err), g.Wait())
		}
		for _, e := range entries {
			id, _ := strings.CutPrefix(e.Name(), asidePrefix) // hidden by a server that was killed
			if e.IsDir() && !strings.HasPrefix(id, ".") {
				path := filepath.Join(dir, e.Name())
				h := &hidden{id: id, dir: dir, pod: podOf(path), asked: make(chan struct{})}
				g.Go(func() error { return a.take(ctx, h, path, &found) })
			}
		}
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("set tasks aside: %w", err)
	}
	for _, h := range a.tasks {
		if h.pod != h.id { // of a sandbox that was loaded like this, it is the sandbox itself
			h.shim = a.tasks[h.pod]
		}
	}
	return a, nil
}

// take hides a bundle that is called path now, or leaves it to containerd.
func (a *aside) take(ctx context.Context, h *hidden, path string, found *sockets) error {
	b, err := bootstrap(path)
	if err != nil || b.GetProtocol() != "ttrpc" || !found.serves(b.GetAddress()) ||
		!h.joinable(b) && ask(ctx, path, h.id, startTimeout) != silent {
		if path == h.bundle() {
			return nil
		}
		return os.Rename(path, h.bundle())
	}
	if path != h.path() {
		if err := os.Rename(path, h.path()); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tasks[h.id] = h
	return nil
}

// sockets remembers of each shim's socket whether somebody serves it. The tasks of a pod share one.
type sockets struct {
	mu     sync.Mutex
	served map[string]func() bool
}

func (s *sockets) serves(address string) bool {
	s.mu.Lock()
	f := s.served[address]
	if f == nil {
		f = sync.OnceValue(func() bool {
			conn, err := shim.AnonReconnectDialer(address, startTimeout)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil || full(err)
		})
		s.served[address] = f
	}
	s.mu.Unlock()
	return f()
}

// full reports whether a connection failed because a process that runs does not accept any.
func full(err error) bool {
	var timeout net.Error
	return errors.Is(err, unix.EAGAIN) || errors.As(err, &timeout) && timeout.Timeout()
}

// joinable reports whether containerd takes up what a bundle is for by connecting to the shim: a
// sandbox that is a shim, and a task in the shim of a pod.
func (h *hidden) joinable(b *bootapi.BootstrapResult) bool {
	return b.GetVersion() >= joinableVersion && (h.isSandbox() || h.pod != "")
}

func (h *hidden) isSandbox() bool { return filepath.Base(filepath.Dir(h.dir)) == sandboxPart }

// podOf is the ID of the sandbox object through which a task was put in its shim; "" if there was
// none.
func podOf(bundle string) string {
	id, err := os.ReadFile(filepath.Join(bundle, "sandbox"))
	if err != nil {
		return ""
	}
	return string(id)
}

// answer is what came of a question to a shim.
type answer int

const (
	silent   answer = iota // it runs, and said nothing in time
	answered               // be it with an error
	ended                  // the kernel says that it does not run
)

// ask asks a shim whether it is there. One that cannot be asked here counts as one that has
// answered, since its bundle says nothing of how to reach it or it is not reached by ttrpc.
func ask(ctx context.Context, bundle, id string, timeout time.Duration) answer {
	b, err := bootstrap(bundle)
	if err != nil || b.GetProtocol() != "ttrpc" {
		return answered
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A shim opens its log before it serves, and waits for a reader: for ever where the containerd
	// that started it was killed in between.
	reader, err := os.OpenFile(filepath.Join(bundle, "log"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err == nil {
		defer reader.Close()
	}
	conn, err := shim.AnonReconnectDialer(b.GetAddress(), timeout)
	if err != nil && full(err) {
		return silent
	}
	if err != nil {
		return ended
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	tasks, err := runtimev2.NewTaskClient(client, int(b.GetVersion()))
	if err != nil {
		return answered
	}
	if _, err = tasks.Connect(ctx, &shimapi.ConnectRequest{ID: id}); err != nil && ctx.Err() != nil {
		return silent
	}
	return answered
}

// bootstrap reads how containerd reaches a shim.
func bootstrap(bundle string) (*bootapi.BootstrapResult, error) {
	text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil {
		return nil, err
	}
	b := &bootapi.BootstrapResult{}
	return b, json.Unmarshal(text, b)
}
