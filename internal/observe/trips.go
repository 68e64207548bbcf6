// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/lane"
)

// trips traces the trip of each exit: one span from the process's end to the last thing given back,
// below it the way to the durable fact and every attempt.
type trips struct {
	tracer trace.Tracer

	mu   sync.Mutex
	byID map[string]trace.Span // of exits that were settled and not released
}

func newTrips(t trace.Tracer) *trips {
	return &trips{tracer: t, byID: map[string]trace.Span{}}
}

// settled begins the trip of id, whose process ended lag ago.
func (t *trips) settled(id, origin string, lag time.Duration) {
	now := time.Now()
	died := now.Add(-max(lag, 0))
	ctx, root := t.tracer.Start(context.Background(), "exit", trace.WithNewRoot(), trace.WithTimestamp(died),
		trace.WithAttributes(attribute.String("berth.id", id), attribute.String("berth.witness", origin)))
	_, s := t.tracer.Start(ctx, "settle", trace.WithTimestamp(died))
	s.End(trace.WithTimestamp(now))
	if !root.IsRecording() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.byID[id]; old != nil {
		old.End()
	}
	t.byID[id] = root
}

// attempted records an attempt of the lane of id.
func (t *trips) attempted(id string, n int, took time.Duration, r lane.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	root := t.byID[id]
	if root == nil {
		return
	}
	now := time.Now()
	_, s := t.tracer.Start(trace.ContextWithSpan(context.Background(), root), "attempt", trace.WithTimestamp(now.Add(-took)),
		trace.WithAttributes(attribute.Int("berth.attempt", n)))
	if err := r.Err(); err != nil {
		s.RecordError(err)
		s.SetStatus(otelcodes.Error, err.Error())
	}
	s.End(trace.WithTimestamp(now))
}

// released ends the trip of id.
func (t *trips) released(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if root := t.byID[id]; root != nil {
		root.End()
		delete(t.byID, id)
	}
}
