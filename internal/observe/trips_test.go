// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"berth/internal/lane"
)

// The trip of an exit is one trace: from the process's end to the last thing given back.
func TestTheTripOfAnExitIsOneTrace(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	defer func() { _ = tp.Shutdown(context.Background()) }()
	tr := newTrips(tp.Tracer("berth"))
	tr.attempted("c1", 1, time.Second, lane.Done()) // of a lane that has no exit
	tr.settled("c1", "kernel", time.Minute)
	tr.attempted("c1", 1, time.Second, lane.Done())
	tr.attempted("c1", 1, time.Second, lane.Retry(errors.New("busy")))
	tr.released("other")
	tr.released("c1")
	tr.released("c1")
	var root sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if s.Name() == "exit" {
			root = s
		}
	}
	if root == nil || root.EndTime().Sub(root.StartTime()) < time.Minute || root.Parent().IsValid() {
		t.Fatalf("%v", root)
	}
	names, failed := map[string]int{}, 0
	for _, s := range spans.Ended() {
		names[s.Name()]++
		if s != root && s.Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("%s is not below the exit", s.Name())
		}
		if s.Status().Description == "busy" {
			failed++
		}
	}
	if names["settle"] != 1 || names["attempt"] != 2 || failed != 1 || len(tr.byID) != 0 {
		t.Errorf("%v, %d failed, %v", names, failed, tr.byID)
	}
}
