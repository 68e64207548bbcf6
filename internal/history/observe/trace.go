// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	"berth/internal/base/config"
	"berth/internal/base/version"
	"berth/internal/heart/pod"
)

// flushTimeout is how long Close sends the spans that are left.
const flushTimeout = 5 * time.Second

// Tracing sends spans to a collector. A nil Tracing makes none.
type Tracing struct {
	provider *sdktrace.TracerProvider
	spans    *spans
}

// NewTracing makes a tracing, or returns nil if no endpoint is configured. It does not wait for a
// connection. The caller closes it.
func NewTracing(ctx context.Context, cfg config.Tracing) (*Tracing, error) {
	if cfg.Endpoint == "" {
		return nil, nil // there is no tracing
	}
	e, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("send traces to %s: %w", cfg.Endpoint, err)
	}
	s := newSpans(e)
	return &Tracing{
		provider: sdktrace.NewTracerProvider(
			sdktrace.WithSpanProcessor(s),
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Sampling))),
			sdktrace.WithResource(resource.NewSchemaless(
				attribute.String("service.name", "berth"),
				attribute.String("service.version", version.Semantic()),
			)),
		),
		spans: s,
	}, nil
}

// Close sends what is left, within a bound.
func (t *Tracing) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// Server returns the options of a gRPC server whose calls are traced.
func (t *Tracing) Server() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	))}
}

// Ports returns p with a span for each of the calls that take most of the time of an operation.
func (t *Tracing) Ports(p pod.Ports) pod.Ports {
	if t != nil {
		p.Runtime = tracedRuntime{p.Runtime, t.tracer()}
		p.Network = tracedNetwork{p.Network, t.tracer()}
		p.Store = tracedStore{p.Store, t.tracer()}
	}
	return p
}

func (t *Tracing) tracer() trace.Tracer {
	if t == nil {
		return noop.NewTracerProvider().Tracer("berth")
	}
	return t.provider.Tracer("berth")
}

// dropped returns how many spans were dropped so far.
func (t *Tracing) dropped() uint64 {
	if t == nil {
		return 0
	}
	return t.spans.dropped.Load()
}
