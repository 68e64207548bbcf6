// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
	"berth/internal/heart/pod"
	"berth/internal/history/recorder"
)

// observed is an observer, and all that people and machines see of it.
type observed struct {
	*Observer
	log      bytes.Buffer
	metrics  *Metrics
	happened []string
	removed  []string
	spans    *tracetest.SpanRecorder
}

func newObserved() *observed {
	o := &observed{metrics: NewMetrics(), spans: tracetest.NewSpanRecorder()}
	drop := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	o.Observer = New(Config{
		Log:      slog.New(slog.NewTextHandler(&o.log, &slog.HandlerOptions{ReplaceAttr: drop})),
		Recorder: recorder.Open(recorder.Config{}),
		Metrics:  o.metrics,
		Removed:  func(id string) { o.removed = append(o.removed, id) },
		Happened: func(id string) { o.happened = append(o.happened, id) },
		Tracing:  &Tracing{provider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o.spans))},
	})
	return o
}

// counts returns what /metrics says of berth itself, without what is zero.
func (o *observed) counts() []string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(o.metrics.reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "GET", "/metrics", nil))
	body, _ := io.ReadAll(w.Body)
	var counts []string
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "berth_") && !strings.Contains(line, "_bucket") && !strings.HasSuffix(line, " 0\n") {
			counts = append(counts, strings.TrimSpace(line))
		}
	}
	return counts
}

// PROPERTIES 15: one event is one line of the log, one entry of the timeline, and an event of the
// exit's trace, in the same words. Nothing says the ID twice.
func TestAnEventIsToldOnceEverywhere(t *testing.T) {
	o := newObserved()
	f := exit.Fact{ID: "c1", Code: 42, Measured: true, Origin: exit.Kernel, At: clock.Stamped(time.Now())}
	o.Note("c1", event.ContainerCreated{Names: event.Names{Pod: "web", Container: "app"}, Took: time.Second})
	o.Note("c1", event.ExitReported{Exit: event.ExitOf(f)})
	o.Note("c1", event.ExitSettled{Exit: event.ExitOf(f), Lag: 2 * time.Second})
	o.Note("c1", event.AttemptFailed{Step: "release", Attempt: 1, Err: "the mount is busy"})
	o.Note("c1", event.Released{What: []string{"task", "io"}, Holds: []string{"files"}})
	o.Note("", event.NotCompared{Err: "containerd is away"})
	o.Note("c1", event.Removed{})
	want := `level=INFO msg="exit settled" id=c1 code=42 reason=Error witness=kernel
level=WARN msg="lane attempt failed" id=c1 step=release attempt=1 err="the mount is busy"
level=WARN msg="records not compared with containerd" err="containerd is away"
`
	if got := o.log.String(); got != want {
		t.Errorf("the log is\n%s", got)
	}
	told, err := o.cfg.Recorder.Find(t.Context(), recorder.Query{Of: "web/app"})
	if err != nil {
		t.Fatal(err)
	}
	var words strings.Builder
	for _, e := range told.Entries {
		fmt.Fprintf(&words, "%s: %s (%s) %s\n", e.Kind, e.What, e.Detail, e.Err)
	}
	want = `ContainerCreated: container CREATED (name=web/app took=1s) 
ExitReported: exit reported (code=42 witness=kernel) 
ExitSettled: exit settled (code=42 reason=Error witness=kernel) 
AttemptFailed: lane attempt failed (step=release attempt=1) the mount is busy
Released: holds released (what=task,io holds=files) 
Removed: record removed () 
`
	if words.String() != want {
		t.Errorf("the timeline is\n%s", words.String())
	}
	var spans []string
	for _, s := range o.spans.Ended() {
		for _, e := range s.Events() {
			spans = append(spans, s.Name()+": "+e.Name)
		}
	}
	if !slices.Equal(spans, []string{"exit: lane attempt failed", "exit: holds released"}) {
		t.Errorf("the traces have %q", spans)
	}
	if !slices.Equal(o.happened, []string{"c1", "c1", "c1", "c1", "c1", "", "c1"}) || !slices.Equal(o.removed, []string{"c1"}) {
		t.Errorf("happened to %q, removed %q", o.happened, o.removed)
	}
}

// What an event counts is derived from it, and from nothing else.
func TestEventsAreCounted(t *testing.T) {
	o := newObserved()
	o.Note("c1", event.ExitSettled{Exit: event.Exit{Witness: exit.Kernel}, Lag: 2 * time.Second})
	o.Note("c2", event.ExitSettled{Exit: event.Exit{Witness: exit.Stream}, Lag: -time.Second}) // by another clock
	o.Note("c1", event.OOMKillSurvived{Kills: 3})
	o.Note("c1", event.ExitFound{})
	o.Note("c1", event.OrphanRemoved{})
	o.Note("c1", event.LateTask{})
	o.Note("c1", event.StopRequested{})
	key := pod.LaneKey{ID: "c1", Purpose: pod.Hook}
	o.Ended(key, 1, time.Second, lane.Done())
	o.Ended(key, 2, time.Second, lane.Retry(&lane.PanicError{Value: "oops", Stack: []byte("a stack")}))
	o.Lost(errors.New("broken pipe"), true)
	o.Lost(errors.New("no socket"), false)
	o.Lost(errors.New("no socket"), false) // which is logged once
	want := []string{
		`berth_audit_repairs_total{what="exit"} 1`,
		`berth_audit_repairs_total{what="orphan"} 2`,
		`berth_containerd_disconnects_total 1`,
		`berth_exit_lag_seconds_sum{witness="kernel"} 2`,
		`berth_exit_lag_seconds_count{witness="kernel"} 1`,
		`berth_exit_lag_seconds_count{witness="stream"} 1`,
		`berth_exits_total{reason=""} 2`,
		`berth_lane_attempts_total{result="done"} 1`,
		`berth_lane_attempts_total{result="retry"} 1`,
		`berth_oom_kills_survived_total 3`,
		`berth_panics_total{where="lane"} 1`,
	}
	if got := o.counts(); !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	for _, line := range []string{
		`level=ERROR msg="lane attempt panicked" id=c1 lane=hooks attempt=2 stack="a stack" err=`,
		`level=WARN msg="the connection to containerd is lost; connecting again" err="broken pipe"`,
		`level=WARN msg="containerd is not there yet; trying again" err="no socket"`,
	} {
		if strings.Count(o.log.String(), line) != 1 {
			t.Errorf("%s\nis not once in\n%s", line, o.log.String())
		}
	}
}
