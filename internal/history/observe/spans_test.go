// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// collector takes spans only while its gate is open.
type collector struct {
	gate chan struct{}
	err  error
	got  int
}

func (c *collector) ExportSpans(_ context.Context, batch []sdktrace.ReadOnlySpan) error {
	<-c.gate // it ignores its deadline, as a broken one might
	if c.err != nil {
		return c.err
	}
	c.got += len(batch)
	return nil
}

func (c *collector) Shutdown(context.Context) error { return nil }

// PROPERTIES 19: a collector that hangs blocks nobody; what it costs is counted.
func TestSpansNeverWaitForTheCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collector{gate: make(chan struct{})}
		s := newSpans(c)
		tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s))
		const extra = 300
		for range maxSpans + extra {
			_, span := tp.Tracer("t").Start(t.Context(), "x")
			span.End()
		}
		if got := s.dropped.Load(); got != extra {
			t.Errorf("%d spans were dropped, want %d", got, extra)
		}
		close(c.gate)
		if err := tp.ForceFlush(t.Context()); err != nil {
			t.Error(err)
		}
		if c.got != maxSpans {
			t.Errorf("the collector got %d spans, want %d", c.got, maxSpans)
		}
		c.err = errors.New("refused")
		_, span := tp.Tracer("t").Start(t.Context(), "x")
		span.End()
		if err := tp.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if got := s.dropped.Load(); got != extra+1 || s.waiting.Load() != 0 {
			t.Errorf("%d spans were dropped in the end, and %d still wait", got, s.waiting.Load())
		}
	})
	if (*Tracing)(nil).dropped() != 0 {
		t.Error("spans were dropped where there is no tracing")
	}
}
