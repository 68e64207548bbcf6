// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// maxSpans is how many spans wait for the collector at most, including those that are being sent.
const maxSpans = 2048

// spans is a span processor that never blocks: spans beyond the bound are dropped and counted. The
// batch processor behind it drops spans, too, when its queue is full, but does not say how many.
type spans struct {
	sdktrace.SpanProcessor
	waiting atomic.Int64
	dropped atomic.Uint64
}

// newSpans makes a processor that sends to e in batches.
func newSpans(e sdktrace.SpanExporter) *spans {
	s := &spans{}
	s.SpanProcessor = sdktrace.NewBatchSpanProcessor(exporter{e, s}, sdktrace.WithMaxQueueSize(maxSpans))
	return s
}

// OnEnd implements sdktrace.SpanProcessor.
func (s *spans) OnEnd(span sdktrace.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	if s.waiting.Add(1) > maxSpans {
		s.waiting.Add(-1)
		s.dropped.Add(1)
		return
	}
	s.SpanProcessor.OnEnd(span)
}

// exporter counts what becomes of the spans.
type exporter struct {
	sdktrace.SpanExporter
	spans *spans
}

// ExportSpans implements sdktrace.SpanExporter.
func (e exporter) ExportSpans(ctx context.Context, batch []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, batch)
	e.spans.waiting.Add(-int64(len(batch)))
	if err != nil {
		e.spans.dropped.Add(uint64(len(batch)))
	}
	return err
}
