// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/ttrpc"

	"berth/internal/base/ops"
)

const (
	// mostTimeouts is how many requests in a row a plug-in may leave unanswered before it is left
	// alone, and pluginRest for how long it is.
	mostTimeouts = 3
	pluginRest   = 30 * time.Second
)

// health is whether a plug-in answers in time. One that does not is disconnected, unless it has
// asked to stay connected: then each request would wait for it for the whole time, and since one
// request is relayed at a time, all creations of the node would queue behind it. So it is left
// alone for a while once it did not answer a few requests in a row: each request fails for it at
// once, as if its time were over, and the plug-in's own policy decides the consequence. Then one
// request tries again.
type health struct {
	mu       sync.Mutex
	timeouts int       // in a row
	rests    time.Time // until then it is not asked
}

// guarded puts the health of its plug-in and then next before the requests of each connection. The
// option of ttrpc is made anew for each connection, because it keeps its state, and would put the
// health of one plug-in before the requests of the next.
func guarded(timeout time.Duration, next ttrpc.UnaryClientInterceptor) ttrpc.ClientOpts {
	return func(c *ttrpc.Client) {
		ttrpc.WithChainUnaryClientInterceptor((&health{}).guard(timeout), next)(c)
	}
}

func (h *health) guard(timeout time.Duration) ttrpc.UnaryClientInterceptor {
	return func(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, invoke ttrpc.Invoker) error {
		began := time.Now()
		if rest := h.rest(began); rest > 0 {
			return fmt.Errorf("it did not answer %d requests in a row, and is not asked for another %s: %w",
				mostTimeouts, rest.Round(time.Second), context.DeadlineExceeded)
		}
		deadline, _ := ctx.Deadline() // of the plug-in, or of a caller who gives up earlier
		ctx, op := ops.Begin(ctx, ops.Work{Kind: ops.Plugin, What: "an NRI plug-in (" + req.GetMethod() + ")"})
		defer op.End()
		err := invoke(ctx, req, resp)
		h.note(err, deadline.Sub(began) >= timeout/2)
		return err
	}
}

// rest returns for how long the plug-in is still left alone.
func (h *health) rest(now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(0, h.rests.Sub(now))
}

// note takes the outcome of a request, and whether the plug-in had enough time for it.
func (h *health) note(err error, enough bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !errors.Is(err, context.DeadlineExceeded):
		h.timeouts = 0
	case enough:
		if h.timeouts++; h.timeouts >= mostTimeouts {
			h.rests = time.Now().Add(pluginRest)
		}
	}
}
