// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
)

// The trip of an exit is one trace: from the process's end to the last thing given back.
func TestTheTripOfAnExitIsOneTrace(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	defer func() { _ = tp.Shutdown(context.Background()) }()
	tr := newTrips(tp.Tracer("berth"), clock.New(nil))
	tr.attempted("c1", 1, time.Second, lane.Done()) // of a lane that has no exit
	note := func(id string, e event.Event) {
		tr.noted(event.Entry{At: clock.Stamped(time.Now()), ID: id, Event: e}, event.Describe(e))
	}
	note("c1", event.StopRequested{}) // before the exit, and so not a part of its trip
	note("c1", event.ExitSettled{Exit: event.Exit{Witness: exit.Kernel}, Lag: time.Minute})
	tr.attempted("c1", 1, time.Second, lane.Done())
	tr.attempted("c1", 1, time.Second, lane.Retry(errors.New("busy")))
	note("c1", event.AttemptFailed{Step: "release", Attempt: 1, Err: "busy"})
	note("other", event.Removed{})
	note("c1", event.Released{What: []string{"files"}})
	note("c1", event.Released{What: []string{"task", "io"}})
	note("c1", event.Removed{}) // the trip is over
	var root sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if s.Name() == "exit" {
			root = s
		}
	}
	if root == nil || root.EndTime().Sub(root.StartTime()) < time.Minute || root.Parent().IsValid() {
		t.Fatalf("%v", root)
	}
	if happened := root.Events(); len(happened) != 3 || happened[0].Name != "lane attempt failed" || len(happened[0].Attributes) != 3 {
		t.Errorf("the events of the span are %v", happened)
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
