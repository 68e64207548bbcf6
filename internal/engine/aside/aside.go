// SPDX-License-Identifier: Apache-2.0

package aside

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

	"berth/internal/base/connection"
	"berth/internal/base/processors"
	"berth/internal/engine/shims"
)

const (
	taskPart = "io.containerd.runtime.v2.task"
	// sandboxPart starts shims that are sandboxes.
	sandboxPart = "io.containerd.sandbox.controller.v1.shim"

	// joinableVersion is the version of a shim's API from which on containerd needs no more than
	// the address of a shim to take up a task in it.
	joinableVersion = 3
	// startTimeout is how long a shim may take to answer before the server starts.
	startTimeout = 200 * time.Millisecond
	// answerTimeout is how long it may take later, when all shims of a node are asked.
	answerTimeout = time.Second
	// askAtOnce is how many shims are asked at the same time.
	askAtOnce = 128
)

// Tasks holds the tasks that containerd is given after its start. In its start it would ask for
// each task in turn, two at a time, and have the OCI runtime of each list its processes: a node
// with 500 pods would be without an answer for six seconds. For each task of a shim that hangs it
// would wait five seconds, and then end the task, because it takes such a shim for a dead one.
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
type Tasks struct {
	life context.Context // of the server

	mu     sync.Mutex
	tasks  map[string]*Task // by ID
	closed bool

	running sync.WaitGroup // of goroutines that ask shims
	loading chan struct{}  // holds a value for each task that is being loaded
	// load gives containerd a task whose shim runs, and whose bundle has its name back. It returns
	// errdefs.ErrNotFound if containerd has no object for it.
	load func(ctx context.Context, t *Task) error
	// cleanUp cleans up after a shim that has ended. The bundle has its name back.
	cleanUp func(ctx context.Context, t *Task) error
}

// Task is a task or a sandbox whose bundle is hidden.
type Task struct {
	ID  string
	Dir string // of the bundle
	Pod string // the sandbox in whose shim a task is; "" if there is none
	// Shim is the PID of its shim, from the shim's answer; 0 if there is none. Attempts at the task
	// use it one after the other.
	Shim int

	shim   *Task         // that sandbox, if it is hidden, too
	once   sync.Once     // begins the first question
	asked  chan struct{} // closed after the first question, and after acting on its answer
	got    reply         // to the first question; to be read once asked is closed
	failed bool          // it could not be loaded; only who tries it uses this, one after the other
}

// Bundle returns the path of the bundle by its own name.
func (h *Task) Bundle() string { return filepath.Join(h.Dir, h.ID) }
func (h *Task) path() string   { return filepath.Join(h.Dir, shims.AsidePrefix+h.ID) }

// gone reports whether the bundle is gone.
func (h *Task) gone() bool {
	_, shown := os.Lstat(h.Bundle())
	_, there := os.Lstat(h.path())
	return errors.Is(shown, fs.ErrNotExist) && errors.Is(there, fs.ErrNotExist)
}

// show gives the bundle its name back.
func (h *Task) show() error {
	if err := os.Rename(h.path(), h.Bundle()); err != nil {
		if _, shown := os.Lstat(h.Bundle()); shown != nil {
			return err
		}
	}
	return nil
}

// SetAside reports whether there is a task that containerd does not know, because its shim has not
// answered since the server was started. Unless the shim was asked before, it is asked now, which
// takes a second at most; when ctx ends before that, the task counts as set aside.
func (a *Tasks) SetAside(ctx context.Context, id string) bool {
	h := a.get(id)
	if h == nil {
		return false
	}
	a.begin(a.life, h)
	select {
	case <-h.asked:
	case <-ctx.Done():
	}
	return a.get(id) != nil
}

// Use sets the functions that give containerd a task, and that clean up after a shim that has
// ended. It is called before anything is asked for.
func (a *Tasks) Use(load, cleanUp func(ctx context.Context, t *Task) error) {
	a.load, a.cleanUp = load, cleanUp
}

// Adopt begins to give containerd the tasks of the shims that run, side by side and in the
// background. Call it once, after the work that must not wait for it. Until then, SetAside does so
// for each requested task.
func (a *Tasks) Adopt() { a.run(func() { a.adopt(a.life) }) }

func (a *Tasks) get(id string) *Task {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tasks[id]
}

func (a *Tasks) drop(h *Task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.tasks, h.ID)
}

func (a *Tasks) all() []*Task {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.tasks))
}

// run runs f in a goroutine that stop waits for. It returns false after stop.
func (a *Tasks) run(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.running.Go(f)
	}
	return !a.closed
}

// Stop waits for the goroutines that ask shims. The context it works under has ended.
func (a *Tasks) Stop() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
}

func newTasks(life context.Context) *Tasks {
	return &Tasks{life: life, tasks: map[string]*Task{}, loading: make(chan struct{}, 2*processors.Count())}
}

// Hide hides the bundles of tasks below containerd's state directory, before containerd is started.
// life is that of the server. It finds out side by side which shims have ended, without asking the
// others; where a question is needed it takes little more than startTimeout.
func Hide(life context.Context, state string) (*Tasks, error) { return find(life, state, false) }

// Leave gives the bundles that a server has hidden their names back, and hides none: containerd
// takes up all tasks itself.
func Leave(life context.Context, state string) (*Tasks, error) { return find(life, state, true) }

// find looks at each bundle below containerd's state directory, and hides or leaves it.
func find(life context.Context, state string, leave bool) (*Tasks, error) {
	a := newTasks(life)
	found := sockets{served: map[string]func() bool{}}
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for _, part := range []string{taskPart, sandboxPart} {
		dir := filepath.Join(state, part, connection.Namespace)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("look for tasks: %w", err), g.Wait())
		}
		for _, e := range entries {
			id, _ := strings.CutPrefix(e.Name(), shims.AsidePrefix) // hidden by a server that was killed
			if e.IsDir() && !strings.HasPrefix(id, ".") {
				path := filepath.Join(dir, e.Name())
				h := &Task{ID: id, Dir: dir, Pod: podOf(path), asked: make(chan struct{})}
				g.Go(func() error { return a.take(life, h, path, leave, &found) })
			}
		}
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("set tasks aside: %w", err)
	}
	for _, h := range a.tasks {
		if h.Pod != h.ID { // for a sandbox loaded this way, it is the sandbox itself
			h.shim = a.tasks[h.Pod]
		}
	}
	return a, nil
}

// take hides a bundle that is called path now, or leaves it to containerd.
func (a *Tasks) take(ctx context.Context, h *Task, path string, leave bool, found *sockets) error {
	b, err := Bootstrap(path)
	if err != nil { // its server was killed while it started the shim
		readLog(ctx, path)
	}
	if leave || err != nil || b.GetProtocol() != "ttrpc" || !found.serves(b.GetAddress()) ||
		!h.joinable(b) && ask(ctx, path, h.ID, startTimeout).answer != silent {
		if path == h.Bundle() {
			return nil
		}
		return os.Rename(path, h.Bundle())
	}
	if path != h.path() {
		if err := os.Rename(path, h.path()); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tasks[h.ID] = h
	return nil
}

// readLog keeps the log of a shim open, until ctx ends, whose bundle containerd will remove because
// it lacks the shim's address. A shim that waits for a reader of its log would wait for ever then.
// Its socket, inherited from its pod's previous shim, is there already: the tasks of that one would
// be taken for tasks of a shim that hangs.
func readLog(ctx context.Context, bundle string) {
	if reader, err := openLog(bundle); err == nil {
		context.AfterFunc(ctx, func() { _ = reader.Close() })
	}
}

// openLog opens the log of a shim for reading, which waits for nothing. A shim opens its log before
// it serves, and waits for a reader: for ever where the containerd that started it was killed in
// between.
func openLog(bundle string) (*os.File, error) {
	return os.OpenFile(filepath.Join(bundle, "log"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
}

// sockets remembers of each shim's socket whether it is served. The tasks of a pod share one.
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

// joinable reports whether containerd takes up a bundle by connecting to the shim: a sandbox that
// is a shim, or a task in the shim of a pod.
func (h *Task) joinable(b *bootapi.BootstrapResult) bool {
	return b.GetVersion() >= joinableVersion && (h.IsSandbox() || h.Pod != "")
}

// IsSandbox reports whether it is a shim that is a sandbox, and not a task.
func (h *Task) IsSandbox() bool { return filepath.Base(filepath.Dir(h.Dir)) == sandboxPart }

// podOf is the ID of the sandbox object through which a task was put in its shim; "" if there was
// none.
func podOf(bundle string) string {
	id, err := os.ReadFile(filepath.Join(bundle, "sandbox"))
	if err != nil {
		return ""
	}
	return string(id)
}

// answer is the outcome of a question to a shim.
type answer int

const (
	silent   answer = iota // it runs, and did not answer in time
	answered               // be it with an error
	ended                  // the kernel reports that it does not run
)

// reply is an answer, with the PID that the shim gave; 0 if it gave none.
type reply struct {
	answer answer
	shim   int
}

// ask asks a shim whether it is there. A shim that cannot be asked here counts as one that has
// answered, because its bundle lacks its address or it does not speak ttrpc.
func ask(ctx context.Context, bundle, id string, timeout time.Duration) reply {
	b, err := Bootstrap(bundle)
	if err != nil || b.GetProtocol() != "ttrpc" {
		return reply{answer: answered}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reader, err := openLog(bundle)
	if err == nil {
		defer reader.Close()
	}
	conn, err := shim.AnonReconnectDialer(b.GetAddress(), timeout)
	if err != nil && full(err) {
		return reply{answer: silent}
	}
	if err != nil {
		return reply{answer: ended}
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	tasks, err := runtimev2.NewTaskClient(client, int(b.GetVersion()))
	if err != nil {
		return reply{answer: answered}
	}
	resp, err := tasks.Connect(ctx, &shimapi.ConnectRequest{ID: id})
	if err != nil && ctx.Err() != nil {
		return reply{answer: silent}
	}
	return reply{answered, int(resp.GetShimPid())}
}

// Bootstrap reads from a bundle how containerd reaches a shim.
func Bootstrap(bundle string) (*bootapi.BootstrapResult, error) {
	text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil {
		return nil, err
	}
	b := &bootapi.BootstrapResult{}
	return b, json.Unmarshal(text, b)
}
