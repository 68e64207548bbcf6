// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/runtime"
	runtimev2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
)

const (
	// cleanUpTimeout is how long the clean-up after a shim may take, as in containerd.
	cleanUpTimeout = 5 * time.Second
	// askInterval is the time between two questions to a shim that did not answer.
	askInterval = time.Second
	// adoptAtOnce is how many shims are asked at the same time for the first time, in the background.
	// Each that is woken takes processor time from those who call berth.
	adoptAtOnce = 16
)

// adopt asks the shims of all tasks that are set aside, again and again, until each has answered and
// is loaded, or ctx ends. A task that cannot be loaded stays set aside, and is tried again with the
// next question.
func (a *aside) adopt(ctx context.Context) {
	each(a.all(), adoptAtOnce, func(h *hidden) {
		a.begin(ctx, h)
		<-h.asked
	})
	t := time.NewTicker(askInterval)
	defer t.Stop()
	for left := a.all(); len(left) > 0; left = a.all() {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		each(left, askAtOnce, func(h *hidden) { // they wait, most of them, and take no processor time
			if a.try(ctx, h) == answered && a.get(h.id) == nil {
				log.G(ctx).WithField("id", h.id).Info("the shim of a task answers again")
			}
		})
	}
}

// each calls f with each of them, atOnce at a time.
func each(all []*hidden, atOnce int, f func(*hidden)) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, h := range all {
		g.Go(func() error { f(h); return nil })
	}
	_ = g.Wait()
}

// begin begins the first question to the shim of a task, unless it was begun before.
func (a *aside) begin(ctx context.Context, h *hidden) {
	h.once.Do(func() {
		first := func() {
			defer close(h.asked)
			h.got = a.first(ctx, h)
			if h.got == silent && ctx.Err() == nil {
				log.G(ctx).WithField("id", h.id).Warn("the shim of a task does not answer, the task is set aside until it does")
			}
		}
		if !a.run(first) {
			close(h.asked)
		}
	})
}

// first asks the shim of a task for the first time, and that of a pod once for all its tasks.
func (a *aside) first(ctx context.Context, h *hidden) answer {
	if h.shim == nil {
		return a.try(ctx, h)
	}
	a.begin(ctx, h.shim)
	<-h.shim.asked
	return a.follow(ctx, h, h.shim.got)
}

// try asks a shim, and has its task loaded if it answers.
func (a *aside) try(ctx context.Context, h *hidden) answer {
	return a.follow(ctx, h, ask(ctx, h.path(), h.id, answerTimeout))
}

// follow does what follows from an answer, and returns it.
func (a *aside) follow(ctx context.Context, h *hidden, got answer) answer {
	if got == silent || ctx.Err() != nil {
		return got
	}
	logger := log.G(ctx).WithField("id", h.id)
	if got == ended {
		logger.Warn("the shim of a task ended before it answered")
		err := h.show()
		if err == nil {
			err = a.cleanUp(ctx, h)
		}
		if err != nil && !h.gone() { // whoever releases the task finds what is left
			logger.WithError(err).Warn("cannot clean up after the shim of a task")
		}
		a.drop(h)
		return got
	}
	switch err := a.adoptOne(ctx, h); {
	case err == nil:
	case errdefs.IsNotFound(err) || h.gone():
		logger.WithError(err).Warn("a task whose shim answers is not a task of a container any more")
	default:
		if !h.failed {
			logger.WithError(err).Warn("a task whose shim answers cannot be loaded; trying again")
		}
		h.failed = true
		return got
	}
	a.drop(h)
	return got
}

// adoptOne gives a bundle its name back and loads its task. The bundle is hidden again if the task
// cannot be loaded now. One that could not be hidden again is taken as it is.
func (a *aside) adoptOne(ctx context.Context, h *hidden) error {
	if err := h.show(); err != nil {
		return err
	}
	a.loading <- struct{}{}
	err := a.load(ctx, h)
	<-a.loading
	if err == nil || errdefs.IsNotFound(err) {
		return err
	}
	return errors.Join(err, os.Rename(h.bundle(), h.path()))
}

// loads is the loader of a server. A task that was put in its shim through a sandbox object is
// loaded the same way, also if there is no container for it: containerd lists it then. For any other
// the shim's program is asked, which finds the shim that runs and makes no other.
func (s *Server) loads(ctx context.Context, h *hidden) error {
	ctx = namespaces.WithNamespace(ctx, Namespace)
	path := h.bundle()
	b, err := bootstrap(path)
	if err != nil {
		return fmt.Errorf("read how its shim is reached: %w", err)
	}
	manager, err := part[*runtimev2.ShimManager](s.parts, shimPart)
	if err != nil {
		return err
	}
	bundle, err := runtimev2.LoadBundle(ctx, filepath.Dir(h.dir), h.id)
	if err != nil {
		return err
	}
	// Containerd has removed the working directory: it did not know the task.
	if work, err := os.Readlink(filepath.Join(path, "work")); err == nil {
		if err := os.Mkdir(work, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make its working directory: %w", err)
		}
	}
	opts, err := s.made(ctx, h)
	if err != nil {
		return err
	}
	if opts.SandboxID != "" {
		opts.Address = b.GetProtocol() + "+" + b.GetAddress()
		opts.Version = uint32(b.GetVersion()) //nolint:gosec // 2 or 3
	}
	_, err = manager.Start(ctx, h.id, bundle, opts)
	return err
}

// made says how a task was made: through a sandbox object, or else for a container.
func (s *Server) made(ctx context.Context, h *hidden) (runtime.CreateOpts, error) {
	sb, err := s.client.SandboxStore().Get(ctx, cmp.Or(h.pod, h.id))
	if err == nil {
		return runtime.CreateOpts{Runtime: sb.Runtime.Name, RuntimeOptions: sb.Runtime.Options, SandboxID: sb.ID}, nil
	}
	if h.isSandbox() || !errdefs.IsNotFound(err) {
		return runtime.CreateOpts{}, err
	}
	o, err := s.client.ContainerService().Get(ctx, h.id)
	if err != nil {
		return runtime.CreateOpts{}, err
	}
	return runtime.CreateOpts{Runtime: o.Runtime.Name, RuntimeOptions: o.Runtime.Options}, nil
}

// cleansUp does what containerd does when it loses the connection to a shim: the shim's program
// kills what is left of the container, and the bundle is removed.
func (s *Server) cleansUp(ctx context.Context, h *hidden) error {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, Namespace), cleanUpTimeout)
	defer cancel()
	opts, err := s.made(ctx, h)
	if err != nil {
		return err
	}
	name := opts.Runtime
	if !filepath.IsAbs(name) {
		name = shim.BinaryName(name)
	}
	cmd := exec.CommandContext(ctx, name, "-namespace", Namespace, "-address", s.cfg.address(), "-id", h.id, "-bundle", h.bundle(), "delete")
	cmd.Dir = h.bundle()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s delete: %w: %s", name, err, bytes.TrimSpace(out))
	}
	bundle, err := runtimev2.LoadBundle(ctx, filepath.Dir(h.dir), h.id)
	if err != nil {
		return err
	}
	return bundle.Delete()
}
