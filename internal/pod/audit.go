// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/exit"
)

// auditLoop is the witness that needs nobody to tell it anything: every AuditInterval it asks the kernel
// about each process that should run, and containerd where the kernel does not know.
func (c *Controller) auditLoop(ctx context.Context) {
	t, all := time.NewTicker(c.cfg.AuditInterval), time.NewTicker(c.cfg.RelistInterval)
	defer t.Stop()
	defer all.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.Audit(ctx)
		case <-all.C:
			c.relistAtLeisure(ctx)
		}
	}
}

// relistAtLeisure finds what no event and no new connection would tell of.
func (c *Controller) relistAtLeisure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	if err := c.Relist(ctx); err != nil {
		c.obs.Event("", "audit: containerd cannot be compared with", err)
	}
}

// Audit compares once. What it finds is offered like any other witness's fact.
func (c *Controller) Audit(ctx context.Context) {
	for _, u := range append(c.all(true), c.all(false)...) {
		if u.now().Phase != u.alive() && !u.givenUp() {
			continue
		}
		switch c.seeProcess(u) {
		case processAlive:
		case processGone:
			if known, _ := u.heard(); known.Zero() {
				c.obs.Event(u.id, "audit: ended, and nobody told", nil)
				c.obs.Repaired("exit")
				c.Exited(exit.Fact{ID: u.id, Origin: exit.Audit}) // when, another may know
			}
		case processUnseen, processUnknown:
			c.auditTask(ctx, u)
		}
	}
}

func (c *Controller) auditTask(ctx context.Context, u *unit) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	st, err := c.bodyState(ctx, u)
	switch {
	case errdefs.IsNotFound(err):
		c.Exited(exit.Fact{ID: u.id, Origin: exit.Audit, Message: "its task was gone when berth looked"})
	case err == nil && st.Stopped:
		c.Exited(exit.Fact{ID: u.id, Code: st.Code, Measured: true, At: st.ExitedAt, Origin: exit.Task})
	}
}

// Oldest is the age of the oldest exit that waits for a step: heard and not settled, or settled and not
// released. 0: none does.
func (c *Controller) Oldest(step string) time.Duration {
	var oldest time.Duration
	for _, u := range append(c.all(true), c.all(false)...) {
		st := u.now()
		var since time.Time
		switch {
		case Step(step) == StepSettle && !st.Phase.Ended():
			known, _ := u.heard()
			since = known.At
		case Step(step) == StepRelease && due(u, st) != 0:
			since = st.Exit.At
		}
		if !since.IsZero() {
			oldest = max(oldest, time.Since(since))
		}
	}
	return oldest
}
