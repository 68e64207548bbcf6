// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/lane"
	"berth/internal/heart/state"
)

// trips traces the trip of each exit: one span from the process's end to the last thing given back,
// below it the way to the durable fact and every attempt. What happens to the unit meanwhile are
// the span's events.
type trips struct {
	tracer trace.Tracer
	clock  *clock.Clock // for wall time, which spans have

	mu   sync.Mutex
	byID map[string]trace.Span // of exits that were settled and not released
}

func newTrips(t trace.Tracer, c *clock.Clock) *trips {
	return &trips{tracer: t, clock: c, byID: map[string]trace.Span{}}
}

// noted begins and ends trips, and adds what happens in between to the trip that it is a part of.
func (t *trips) noted(n event.Entry, line event.Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := n.Event.(event.ExitSettled); ok {
		t.beginLocked(n, e)
		return
	}
	root := t.byID[n.ID]
	if root == nil {
		return
	}
	attrs := make([]attribute.KeyValue, 0, len(line.Attrs)+1)
	for _, a := range line.Attrs {
		attrs = append(attrs, attribute.String(a.Key, a.Value.String()))
	}
	if line.Err != "" {
		attrs = append(attrs, attribute.String("err", line.Err))
	}
	root.AddEvent(line.Message, trace.WithTimestamp(t.clock.Wall(n.At)), trace.WithAttributes(attrs...))
	switch e := n.Event.(type) {
	case event.Released:
		if slices.Contains(e.What, state.HoldTask.String()) {
			t.endLocked(n.ID)
		}
	case event.Removed:
		t.endLocked(n.ID)
	}
}

// beginLocked begins the trip of an exit. t.mu must be held.
func (t *trips) beginLocked(n event.Entry, e event.ExitSettled) {
	died := t.clock.Wall(n.At.Add(-max(e.Lag, 0)))
	ctx, root := t.tracer.Start(context.Background(), "exit", trace.WithNewRoot(), trace.WithTimestamp(died),
		trace.WithAttributes(attribute.String("berth.id", n.ID), attribute.String("berth.witness", string(e.Witness))))
	_, s := t.tracer.Start(ctx, "settle", trace.WithTimestamp(died))
	s.End(trace.WithTimestamp(t.clock.Wall(n.At)))
	if !root.IsRecording() {
		return
	}
	t.endLocked(n.ID)
	t.byID[n.ID] = root
}

// attempted records an attempt of the lane of id.
func (t *trips) attempted(id string, n int, took time.Duration, r lane.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	root := t.byID[id]
	if root == nil {
		return
	}
	now := t.clock.Wall(t.clock.Now())
	_, s := t.tracer.Start(trace.ContextWithSpan(context.Background(), root), "attempt", trace.WithTimestamp(now.Add(-took)),
		trace.WithAttributes(attribute.Int("berth.attempt", n)))
	if err := r.Err(); err != nil {
		s.RecordError(err)
		s.SetStatus(otelcodes.Error, err.Error())
	}
	s.End(trace.WithTimestamp(now))
}

// endLocked ends the trip of id, if there is one. t.mu must be held.
func (t *trips) endLocked(id string) {
	if root := t.byID[id]; root != nil {
		root.End()
		delete(t.byID, id)
	}
}
