// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

func TestEachActivityIsDrawnInThePhaseInWhichItBegan(t *testing.T) {
	at := func(ms float64) time.Time { return time.Unix(1000, int64(ms*1e6)) }
	life := traced{
		pod: "p1",
		phases: []tracedPhase{
			{"RunPodSandbox", at(0), at(70)},
			{"StartContainer", at(200), at(260)},
		},
		ended: at(500),
	}
	got := life.draw([]activity{
		{"start task", spanBar, "c1", at(230), at(245)},
		{"create task", spanBar, "p1", at(10), at(50)},
		{"containerd-shim-runc-v2", programBar, "", at(12), at(480)},
		{"runc create", programBar, "", at(20), at(48)},
		{"delete task", spanBar, "c1", at(265), at(280)}, // goes on after the answer
		{"commit", commitBar, "c1", at(201), at(201.05)}, // too short
		{"commit", commitBar, "c0", at(-5), at(-4)},      // of an earlier life
		{"commit", commitBar, "c2", at(501), at(502)},    // of a later one
	})
	want := []phase{
		{"RunPodSandbox", 70, []bar{
			{"create task, pod", spanBar, 10, 50, false},
			{"containerd-shim-runc-v2", programBar, 12, 70, true},
			{"runc create", programBar, 20, 48, false},
		}},
		{"StartContainer", 60, []bar{{"start task", spanBar, 30, 45, false}, {"delete task", spanBar, 65, 80, false}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	svg := plotWaterfall(got)
	check(t, "trace.svg", svg)
	for _, text := range []string{"StartContainer", "create task, pod", "28.0 ms", "goes on"} {
		if !strings.Contains(svg, text) {
			t.Errorf("the picture lacks %q", text)
		}
	}
}

func TestTheCollectorKeepsTheSpansOfBerth(t *testing.T) {
	c, err := newCollector()
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	id := &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: "c1"}}
	scope := func(name, span string) *tracepb.ScopeSpans {
		return &tracepb.ScopeSpans{
			Scope: &commonpb.InstrumentationScope{Name: name},
			Spans: []*tracepb.Span{{
				Name:              span,
				StartTimeUnixNano: 1e9,
				EndTimeUnixNano:   2e9,
				Attributes:        []*commonpb.KeyValue{{Key: "berth.id", Value: id}},
			}},
		}
	}
	_, err = c.Export(context.Background(), &collectorpb.ExportTraceServiceRequest{ResourceSpans: []*tracepb.ResourceSpans{
		{ScopeSpans: []*tracepb.ScopeSpans{scope("berth", "commit"), scope("otelgrpc", "runtime.v1.RuntimeService/Version")}},
	}})
	want := []activity{{"commit", commitBar, "c1", time.Unix(1, 0), time.Unix(2, 0)}}
	if got := c.all(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}
