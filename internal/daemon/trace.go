// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/config"
	"berth/internal/lane"
	"berth/internal/network"
	"berth/internal/pod"
	"berth/internal/state"
	"berth/internal/version"
)

// newTracing makes what traces go through. Without an endpoint all results but the error are nil.
// The caller shuts the provider down, which sends what is left.
func newTracing(ctx context.Context, cfg config.Tracing) (*sdktrace.TracerProvider, *spans, error) {
	if cfg.Endpoint == "" {
		return nil, nil, nil
	}
	e, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.Endpoint)) // it does not wait for a connection
	if err != nil {
		return nil, nil, fmt.Errorf("send traces to %s: %w", cfg.Endpoint, err)
	}
	s := newSpans(e)
	return sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(s),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Sampling))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "berth"),
			attribute.String("service.version", version.Semantic()),
		)),
	), s, nil
}

// trips traces the trip of each exit: one span from the process's end to the last thing given back,
// below it the way to the durable fact and every attempt.
type trips struct {
	tracer trace.Tracer

	mu   sync.Mutex
	byID map[string]trace.Span // of exits that were settled and not released
}

func newTrips(p trace.TracerProvider) *trips {
	return &trips{tracer: p.Tracer("berth"), byID: map[string]trace.Span{}}
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

// span runs f in a span of its own below ctx's.
func span(ctx context.Context, t trace.Tracer, name, id string, f func(ctx context.Context) error) error {
	ctx, s := t.Start(ctx, name, trace.WithAttributes(attribute.String("berth.id", id)))
	defer s.End()
	err := f(ctx)
	if err != nil {
		s.RecordError(err)
		s.SetStatus(otelcodes.Error, err.Error())
	}
	return err
}

// tracedRuntime, tracedStore and tracedNetwork make spans of the calls that take most of the time
// of an operation.
type tracedRuntime struct {
	pod.Runtime
	tracer trace.Tracer
}

func (r tracedRuntime) PrepareSnapshot(ctx context.Context, l pod.Layer) error {
	return span(ctx, r.tracer, "prepare snapshot", l.Key, func(ctx context.Context) error {
		return r.Runtime.PrepareSnapshot(ctx, l)
	})
}

func (r tracedRuntime) CreateTask(ctx context.Context, q pod.TaskRequest) (pid uint32, err error) {
	err = span(ctx, r.tracer, "create task", q.ID, func(ctx context.Context) error {
		pid, err = r.Runtime.CreateTask(ctx, q)
		return err
	})
	return pid, err
}

func (r tracedRuntime) StartTask(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "start task", id, func(ctx context.Context) error { return r.Runtime.StartTask(ctx, id) })
}

func (r tracedRuntime) StartShim(ctx context.Context, q pod.SandboxRequest) error {
	return span(ctx, r.tracer, "start shim", q.ID, func(ctx context.Context) error { return r.Runtime.StartShim(ctx, q) })
}

func (r tracedRuntime) EndShim(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "end shim", id, func(ctx context.Context) error { return r.Runtime.EndShim(ctx, id) })
}

func (r tracedRuntime) CreateSandbox(ctx context.Context, id string, h pod.Handler) error {
	return span(ctx, r.tracer, "create sandbox object", id, func(ctx context.Context) error { return r.Runtime.CreateSandbox(ctx, id, h) })
}

func (r tracedRuntime) DeleteSandbox(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "delete sandbox object", id, func(ctx context.Context) error { return r.Runtime.DeleteSandbox(ctx, id) })
}

func (r tracedRuntime) CreateContainer(ctx context.Context, o pod.Object) error {
	return span(ctx, r.tracer, "create container object", o.ID, func(ctx context.Context) error { return r.Runtime.CreateContainer(ctx, o) })
}

func (r tracedRuntime) DeleteContainer(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "delete container object", id, func(ctx context.Context) error { return r.Runtime.DeleteContainer(ctx, id) })
}

func (r tracedRuntime) DeleteSnapshot(ctx context.Context, snapshotter, key string) error {
	return span(ctx, r.tracer, "delete snapshot", key, func(ctx context.Context) error {
		return r.Runtime.DeleteSnapshot(ctx, snapshotter, key)
	})
}

func (r tracedRuntime) DeleteTask(ctx context.Context, id string) error {
	return span(ctx, r.tracer, "delete task", id, func(ctx context.Context) error { return r.Runtime.DeleteTask(ctx, id) })
}

// tracedStore makes a span of each commit. It is a trace of its own: one commit may serve several
// operations, and the store does not know which.
type tracedStore struct {
	pod.Store
	tracer trace.Tracer
}

func (s tracedStore) Commit(changes ...state.Change) error {
	id := ""
	if len(changes) > 0 {
		id = changes[0].ID()
	}
	return span(context.Background(), s.tracer, "commit", id, func(context.Context) error { return s.Store.Commit(changes...) })
}

type tracedNetwork struct {
	pod.Network
	tracer trace.Tracer
}

func (n tracedNetwork) Setup(ctx context.Context, p network.Pod) (res network.Result, err error) {
	err = span(ctx, n.tracer, "add to network", p.ID, func(ctx context.Context) error {
		res, err = n.Network.Setup(ctx, p)
		return err
	})
	return res, err
}

func (n tracedNetwork) Teardown(ctx context.Context, p network.Pod, recorded network.Result) error {
	return span(ctx, n.tracer, "remove from network", p.ID, func(ctx context.Context) error {
		return n.Network.Teardown(ctx, p, recorded)
	})
}
