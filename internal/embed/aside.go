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
	"slices"
	"strings"
	"sync"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	shimapi "github.com/containerd/containerd/api/runtime/task/v3"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/runtime"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
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
	// answerTimeout is how long a shim may take to answer when the server starts.
	answerTimeout = 200 * time.Millisecond
	// askInterval is the time between two questions to a shim that did not answer.
	askInterval = time.Second
	// askAtOnce is how many shims are asked at the same time.
	askAtOnce = 128
)

// aside holds the tasks whose shims do not answer while the server starts. Containerd would ask one
// after the other, wait for each of a shim's tasks, five seconds a time, and then end the task: it
// takes a shim that hangs for a dead one. Instead, the bundles of such tasks are hidden from
// containerd by their names, so that it does not know the tasks. Once the shim answers, the bundle
// gets its name back, and containerd is given the task.
//
// The same holds for shims that are sandboxes, whose bundles are in a directory of their own. An ID
// has a bundle in one of the two.
type aside struct {
	// in is the directory of each bundle that was hidden, by ID. It is not changed once setAside
	// has returned.
	in map[string]string

	mu    sync.Mutex
	tasks map[string]bool // by ID
}

// SetAside reports whether the shim of a task has not answered since the server was started.
// Containerd does not know the task then, although there is one.
func (s *Server) SetAside(id string) bool {
	a := s.aside
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tasks[id]
}

func (a *aside) drop(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.tasks, id)
}

func (a *aside) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.tasks))
}

// gone reports whether there is no bundle of a task any more.
func (a *aside) gone(id string) bool {
	_, shown := os.Lstat(a.bundle(id))
	_, hidden := os.Lstat(a.hidden(id))
	return errors.Is(shown, fs.ErrNotExist) && errors.Is(hidden, fs.ErrNotExist)
}

func (a *aside) bundle(id string) string { return filepath.Join(a.in[id], id) }
func (a *aside) hidden(id string) string { return filepath.Join(a.in[id], asidePrefix+id) }

// setAside hides the bundles of the tasks whose shims do not answer. It asks all shims side by side
// and takes little more than answerTimeout.
func setAside(ctx context.Context, cfg Config) (*aside, error) {
	a := &aside{in: map[string]string{}, tasks: map[string]bool{}}
	var g errgroup.Group
	g.SetLimit(askAtOnce)
	for _, part := range []string{taskPart, sandboxPart} {
		dir := filepath.Join(cfg.State, part, Namespace)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("look for tasks: %w", err), g.Wait())
		}
		for _, e := range entries {
			g.Go(func() error { return a.take(ctx, dir, e) })
		}
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("set aside tasks whose shims do not answer: %w", err)
	}
	return a, nil
}

// take hides a bundle, if the shim does not answer, or gives it its name back.
func (a *aside) take(ctx context.Context, dir string, e fs.DirEntry) error {
	id, wasHidden := strings.CutPrefix(e.Name(), asidePrefix) // by a server that was killed
	if !e.IsDir() || strings.HasPrefix(id, ".") {
		return nil
	}
	path := filepath.Join(dir, e.Name())
	switch answers := answers(ctx, path, id); {
	case answers && wasHidden:
		return os.Rename(path, filepath.Join(dir, id))
	case answers:
		return nil
	case !wasHidden:
		if err := os.Rename(path, filepath.Join(dir, asidePrefix+id)); err != nil {
			return err
		}
	}
	log.G(ctx).WithField("id", id).Warn("the shim of a task does not answer, the task is set aside until it does")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.in[id], a.tasks[id] = dir, true
	return nil
}

// answers reports whether a shim answers, be it with an error. A shim that has ended answers, too:
// the kernel does in its place. So does one that cannot be asked here, since it says nothing of how
// to reach it or is not reached by ttrpc: containerd has to see to it.
func answers(ctx context.Context, bundle, id string) bool {
	b, err := bootstrap(bundle)
	if err != nil || b.GetProtocol() != "ttrpc" {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	// A shim opens its log before it serves, and waits for a reader: for ever where the containerd
	// that started it was killed in between.
	reader, err := os.OpenFile(filepath.Join(bundle, "log"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err == nil {
		defer reader.Close()
	}
	conn, err := shim.AnonReconnectDialer(b.GetAddress(), answerTimeout)
	if err != nil {
		var timeout net.Error
		return !errors.Is(err, unix.EAGAIN) && !(errors.As(err, &timeout) && timeout.Timeout()) // nobody accepts
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	tasks, err := runtimev2.NewTaskClient(client, int(b.GetVersion()))
	if err != nil {
		return true
	}
	_, err = tasks.Connect(ctx, &shimapi.ConnectRequest{ID: id})
	return err == nil || ctx.Err() == nil
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

// loader gives containerd a task whose shim runs, and whose bundle has its name back.
// errdefs.ErrNotFound says that containerd has no container for it.
type loader func(ctx context.Context, id string) error

// adopt asks the shims of the tasks that are set aside until each has answered and is loaded, or
// ctx ends. A task that cannot be loaded stays set aside, and is tried again with the next
// question.
func (a *aside) adopt(ctx context.Context, load loader) {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	var failed sync.Map // IDs of tasks that could not be loaded
	t := time.NewTicker(askInterval)
	defer t.Stop()
	for left := a.all(); len(left) > 0; left = a.all() {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var g errgroup.Group
		g.SetLimit(askAtOnce)
		for _, id := range left {
			g.Go(func() error {
				if !answers(ctx, a.hidden(id), id) || ctx.Err() != nil {
					return nil
				}
				logger := log.G(ctx).WithField("id", id)
				switch err := a.adoptOne(ctx, load, id); {
				case err == nil:
					logger.Info("the shim of a task answers again")
				case errdefs.IsNotFound(err) || a.gone(id):
					logger.WithError(err).Warn("a task whose shim answers again is not a task of a container any more")
				default:
					if _, again := failed.LoadOrStore(id, true); !again {
						logger.WithError(err).Warn("a task whose shim answers again cannot be loaded; trying again")
					}
					return nil
				}
				a.drop(id)
				return nil
			})
		}
		_ = g.Wait()
	}
}

// adoptOne gives a bundle its name back and loads its task. The bundle is hidden again if the task
// cannot be loaded now. One that could not be hidden again is taken as it is.
func (a *aside) adoptOne(ctx context.Context, load loader, id string) error {
	if err := os.Rename(a.hidden(id), a.bundle(id)); err != nil {
		if _, shown := os.Lstat(a.bundle(id)); shown != nil {
			return err
		}
	}
	err := load(ctx, id)
	if err == nil || errdefs.IsNotFound(err) {
		return err
	}
	return errors.Join(err, os.Rename(a.bundle(id), a.hidden(id)))
}

// load is the loader of a server. Where there is a sandbox object with the task's ID, as for every
// task of berth's, it does so as if a sandbox controller had said where the shim is. Otherwise it
// has the shim's program asked, which finds the shim that runs and makes no other.
func (a *aside) load(ctx context.Context, l *loaded, client *containerd.Client, id string) error {
	b, err := bootstrap(a.bundle(id))
	if err != nil {
		return fmt.Errorf("read how its shim is reached: %w", err)
	}
	manager, err := part[*runtimev2.ShimManager](l, shimPart)
	if err != nil {
		return err
	}
	dir := a.in[id]
	bundle, err := runtimev2.LoadBundle(ctx, filepath.Dir(dir), id)
	if err != nil {
		return err
	}
	sb, sandboxErr := client.SandboxStore().Get(ctx, id)
	opts := runtime.CreateOpts{Runtime: sb.Runtime.Name, RuntimeOptions: sb.Runtime.Options}
	if filepath.Base(filepath.Dir(dir)) == taskPart {
		o, err := client.ContainerService().Get(ctx, id)
		if err != nil {
			return err
		}
		opts.Runtime, opts.RuntimeOptions = o.Runtime.Name, o.Runtime.Options
	} else if sandboxErr != nil {
		return sandboxErr
	}
	if sandboxErr == nil {
		opts.SandboxID = id
		opts.Address = b.GetProtocol() + "+" + b.GetAddress()
		opts.Version = uint32(b.GetVersion()) //nolint:gosec // 2 or 3
	} else if !errdefs.IsNotFound(sandboxErr) {
		return sandboxErr
	}
	_, err = manager.Start(ctx, id, bundle, opts)
	return err
}

// part is the instance of a part.
func part[T any](l *loaded, uri string) (T, error) {
	var none T
	for _, p := range l.set.GetAll() {
		if p.Registration.URI() != uri {
			continue
		}
		instance, err := p.Instance()
		if err != nil {
			return none, err
		}
		v, ok := instance.(T)
		if !ok {
			return none, fmt.Errorf("containerd's %s is a %T", uri, instance)
		}
		return v, nil
	}
	return none, fmt.Errorf("containerd's %s is not loaded", uri)
}
