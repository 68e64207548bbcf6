// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/websocket"

	"berth/internal/heart/pod"
)

// world is a pod p1 with a container c1, and others whose IDs begin with "c1-", and a shim, which
// runs programs given as Go functions.
type world struct {
	t       *testing.T
	service *Service
	stop    func() // ends Run and waits for it
	ended   chan struct{}

	mu        sync.Mutex
	program   func(p *fakeProcess) uint32 // of the next processes
	processes map[Key]*fakeProcess
	ends      map[string]shimEnds // by directory
	hung      bool                // the shim answers nothing
	failing   int                 // how many deletions fail
	running   bool
	most      int // how many processes there were at a time
	specs     []*specs.Process
	closed    []Key // whose standard input was closed
}

type shimEnds struct {
	stdin  io.ReadCloser
	stdout io.WriteCloser
	stderr io.WriteCloser
}

type fakeProcess struct {
	shimEnds
	killed chan struct{}
	exited chan struct{}
	code   uint32
	once   sync.Once
	sizes  []string
	// started is false for a process that was created only, which can be deleted.
	started bool
}

// newWorld makes a world in a virtual time of its own, and runs its service until the test's end.
func newWorld(t *testing.T, leftover ...string) *world {
	w := &world{
		t:         t,
		ended:     make(chan struct{}),
		processes: map[Key]*fakeProcess{},
		ends:      map[string]shimEnds{},
		running:   true,
	}
	dir := t.TempDir()
	for _, name := range leftover {
		if err := os.Mkdir(dir+"/"+name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.service, err = New(Config{Dir: dir, Target: w.target, Processes: w, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w.service.pipes = w.pipes
	if len(leftover) > 0 { // of an earlier berth, which was killed
		w.leave("runs", untilKilled)
		w.leave("ended", func(*fakeProcess) uint32 { return 0 })
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.service.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(w.stop)
	return w
}

func (w *world) target(id string) (pod.Target, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id != "p1" && id != "c1" && !strings.HasPrefix(id, "c1-") {
		return pod.Target{}, fmt.Errorf("container or sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	return pod.Target{ID: id, PodID: "p1", Running: w.running, Ended: w.ended}, nil
}

// pipes are pipes in memory, in which waiting does not keep the virtual time from going on.
func (w *world) pipes(dir string, want streams) (*pipes, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	p := &pipes{dir: dir}
	var ends shimEnds
	if want.stdin {
		ends.stdin, p.stdin = io.Pipe()
	}
	if want.stdout {
		p.stdout, ends.stdout = io.Pipe()
	}
	if want.stderr {
		p.stderr, ends.stderr = io.Pipe()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends[dir] = ends
	return p, nil
}

// leave makes a process as an earlier berth has left it.
func (w *world) leave(exec string, program func(p *fakeProcess) uint32) {
	p := &fakeProcess{killed: make(chan struct{}), exited: make(chan struct{}), started: true}
	w.processes[Key{Container: "c1", Exec: exec}] = p
	go func() {
		p.code = program(p)
		close(p.exited)
	}()
}

// directories are those of exec processes.
func (w *world) directories() int {
	entries, err := os.ReadDir(w.service.cfg.Dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return len(entries)
}

// expectNothingLeft waits until nothing happens any more.
func (w *world) expectNothingLeft() {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	left := len(w.processes)
	w.mu.Unlock()
	if left != 0 || w.directories() != 0 {
		w.t.Errorf("%d processes and %d directories are left", left, w.directories())
	}
	for _, b := range w.service.Budgets() {
		if u := b.Usage(); u.Used != 0 {
			w.t.Errorf("%d %s are in use", u.Used, u.What)
		}
	}
}

// shim is what happens before each answer of the shim.
func (w *world) shim(ctx context.Context, key Key) (*fakeProcess, error) {
	w.mu.Lock()
	hung := w.hung
	p := w.processes[key]
	w.mu.Unlock()
	if hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p == nil {
		return nil, fmt.Errorf("process %s: %w", key, errdefs.ErrNotFound)
	}
	return p, nil
}

func (w *world) Spec(context.Context, string) (*specs.Spec, error) {
	return &specs.Spec{Process: &specs.Process{
		User: specs.User{UID: 1234},
		Args: []string{"init"},
		Env:  []string{"A=B"},
		Cwd:  "/tmp",
	}}, nil
}

func (w *world) CreateExec(ctx context.Context, key Key, r Request) error {
	if _, err := w.shim(ctx, key); !errdefs.IsNotFound(err) {
		return err
	}
	if r.Stdout == "" || r.Stderr == "" && !r.Process.Terminal {
		w.t.Error("runc's shim fails after it has started a process without a path for its output")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.specs = append(w.specs, r.Process)
	w.processes[key] = &fakeProcess{
		shimEnds: w.ends[w.service.cfg.Dir+"/"+key.String()],
		killed:   make(chan struct{}),
		exited:   make(chan struct{}),
	}
	w.most = max(w.most, len(w.processes))
	return nil
}

func (w *world) StartExec(ctx context.Context, key Key) error {
	p, err := w.shim(ctx, key)
	if err != nil {
		return err
	}
	w.mu.Lock()
	p.started = true
	program := w.program
	w.mu.Unlock()
	go func() {
		p.code = program(p)
		close(p.exited)
	}()
	return nil
}

func (w *world) WaitExec(ctx context.Context, key Key) (uint32, error) {
	p, err := w.shim(ctx, key)
	if err != nil {
		return 0, err
	}
	select {
	case <-p.exited:
		return p.code, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (w *world) KillExec(ctx context.Context, key Key) error {
	p, err := w.shim(ctx, key)
	if err == nil {
		p.once.Do(func() { close(p.killed) })
	}
	return err
}

func (w *world) DeleteExec(ctx context.Context, key Key) error {
	p, err := w.shim(ctx, key)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing > 0 {
		w.failing--
		return errdefs.ErrUnavailable
	}
	if !p.started {
		delete(w.processes, key)
		return nil
	}
	select {
	case <-p.exited:
		delete(w.processes, key)
		return nil
	default:
		return errors.New("cannot delete a running process") // in the words of runc's shim

	}
}

func (w *world) CloseExecStdin(ctx context.Context, key Key) error {
	_, err := w.shim(ctx, key)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closed = append(w.closed, key)
	}
	return err
}

func (w *world) ResizeExec(ctx context.Context, key Key, width, height uint16) error {
	p, err := w.shim(ctx, key)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.sizes = append(p.sizes, fmt.Sprintf("%dx%d", width, height))
	return nil
}

// hang makes the shim answer nothing, or answer again.
func (w *world) hang(hung bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = hung
}

// closeOutput is what the end of all processes that have the output open does.
func (p *fakeProcess) closeOutput() {
	for _, c := range []io.Closer{p.stdout, p.stderr} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// untilKilled is a program that runs until it is killed.
func untilKilled(p *fakeProcess) uint32 {
	<-p.killed
	p.closeOutput()
	return 137
}

// here is a program that says that it is there before it does anything else.
func here(program func(p *fakeProcess) uint32) func(p *fakeProcess) uint32 {
	return func(p *fakeProcess) uint32 {
		_, _ = io.WriteString(p.stdout, "here")
		return program(p)
	}
}

// awaitHere waits until a client has heard that its program is there.
func awaitHere(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	for {
		var b []byte
		if err := websocket.Message.Receive(conn, &b); err != nil {
			t.Fatal(err)
		}
		if string(b) == "\x01here" {
			return
		}
	}
}

func sendHello(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	if err := websocket.Message.Send(conn, []byte("\x00hello\n")); err != nil {
		t.Fatal(err)
	}
}
