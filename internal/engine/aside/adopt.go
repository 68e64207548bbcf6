// SPDX-License-Identifier: Apache-2.0

package aside

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
)

const (
	// askInterval is the time between two questions to a shim that did not answer.
	askInterval = time.Second
	// adoptAtOnce is how many shims are asked at the same time for the first time, in the
	// background. Each that is woken takes processor time from those who call berth.
	adoptAtOnce = 16
)

// adopt asks the shims of all tasks that are set aside, again and again, until each has answered
// and is loaded, or ctx ends. A task that cannot be loaded stays set aside, and is tried again with
// the next question.
func (a *Tasks) adopt(ctx context.Context) {
	each(a.all(), adoptAtOnce, func(h *Task) {
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
		each(left, askAtOnce, func(h *Task) { // they wait, most of them, and take no processor time
			if a.try(ctx, h).answer == answered && a.get(h.ID) == nil {
				log.G(ctx).WithField("id", h.ID).Info("shim of a task answers again")
			}
		})
	}
}

// each calls f with each of them, atOnce at a time.
func each(all []*Task, atOnce int, f func(*Task)) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, h := range all {
		g.Go(func() error { f(h); return nil })
	}
	_ = g.Wait()
}

// begin begins the first question to the shim of a task, unless it was begun before.
func (a *Tasks) begin(ctx context.Context, h *Task) {
	h.once.Do(func() {
		first := func() {
			defer close(h.asked)
			h.got = a.first(ctx, h)
			if h.got.answer == silent && ctx.Err() == nil {
				log.G(ctx).WithField("id", h.ID).Warn("shim of a task does not answer, the task is set aside until it does")
			}
		}
		if !a.run(first) {
			close(h.asked)
		}
	})
}

// first asks the shim of a task for the first time; the shim of a pod is asked once for all its
// tasks.
func (a *Tasks) first(ctx context.Context, h *Task) reply {
	if h.shim == nil {
		return a.try(ctx, h)
	}
	a.begin(ctx, h.shim)
	<-h.shim.asked
	return a.follow(ctx, h, h.shim.got)
}

// try asks a shim, and has its task loaded if it answers.
func (a *Tasks) try(ctx context.Context, h *Task) reply {
	return a.follow(ctx, h, ask(ctx, h.path(), h.ID, answerTimeout))
}

// follow acts on an answer, and returns it.
func (a *Tasks) follow(ctx context.Context, h *Task, got reply) reply {
	if got.answer == silent || ctx.Err() != nil {
		return got
	}
	h.Shim = got.shim
	logger := log.G(ctx).WithField("id", h.ID)
	if got.answer == ended {
		logger.Warn("shim of a task ended before it answered")
		err := h.show()
		if err == nil {
			err = a.cleanUp(ctx, h)
		}
		if err != nil && !h.gone() { // the release of the task finds the rest
			logger.WithError(err).Warn("clean-up after the shim of a task failed")
		}
		a.drop(h)
		return got
	}
	switch err := a.adoptOne(ctx, h); {
	case err == nil:
	case errdefs.IsNotFound(err) || h.gone():
		logger.WithError(err).Warn("shim of a task answers, but the task has no container any more")
	default:
		if !h.failed {
			logger.WithError(err).Warn("shim of a task answers, but the task is not loaded, retrying")
		}
		h.failed = true
		return got
	}
	a.drop(h)
	return got
}

// adoptOne gives a bundle its name back and loads its task. The bundle is hidden again if the task
// cannot be loaded now. One that could not be hidden again is taken as it is.
func (a *Tasks) adoptOne(ctx context.Context, h *Task) error {
	if err := h.show(); err != nil {
		return err
	}
	a.loading <- struct{}{}
	err := a.load(ctx, h)
	<-a.loading
	if err == nil || errdefs.IsNotFound(err) {
		return err
	}
	return errors.Join(err, os.Rename(h.Bundle(), h.path()))
}
