// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"slices"
	"time"
)

// The wait before a question that got no answer is asked again.
const (
	firstAsk   = time.Second
	slowestAsk = 5 * time.Minute
)

// untilAnswered asks about each handler until ask has returned nil for all of them, which means
// that there is an answer, or until ctx ends. Before it asks it calls ready, which waits until there
// is somebody to ask. The handlers without an answer are asked about again after a wait that doubles
// up to slowestAsk. report is called with the first error of each handler.
func untilAnswered(ctx context.Context, handlers []string, ready func(context.Context) error, ask func(ctx context.Context, handler string) error, report func(handler string, err error)) {
	reported := map[string]bool{}
	pending := slices.Clone(handlers)
	for wait := firstAsk; ; wait = min(2*wait, slowestAsk) {
		if _ = ready(ctx); ctx.Err() != nil {
			return
		}
		pending = slices.DeleteFunc(pending, func(handler string) bool {
			err := ask(ctx, handler)
			if err != nil && ctx.Err() == nil && !reported[handler] {
				reported[handler] = true
				report(handler, err)
			}
			return err == nil
		})
		if len(pending) == 0 {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}
