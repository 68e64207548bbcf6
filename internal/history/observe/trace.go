// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"

	"berth/internal/base/config"
	"berth/internal/base/ops"
	"berth/internal/base/version"
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

// Span returns the function that begins the span of a part of an operation, or nil if there is no
// tracing.
func (t *Tracing) Span() func(ctx context.Context, w ops.Work) (context.Context, func(error)) {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, w ops.Work) (context.Context, func(error)) {
		ctx, s := t.tracer().Start(ctx, w.What, trace.WithAttributes(attribute.String("berth.id", w.Of.ID)))
		return ctx, func(err error) {
			if err != nil {
				s.RecordError(err)
				s.SetStatus(otelcodes.Error, err.Error())
			}
			s.End()
		}
	}
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
