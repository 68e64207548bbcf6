// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// BridgeLibraries sends what libraries log to log. Left alone they write to standard error
// themselves, and wait for whoever reads that. It has to be called before gRPC is used.
func BridgeLibraries(log *slog.Logger) {
	slog.SetDefault(log) // and with it package log of the standard library
	warnings := slog.NewLogLogger(log.With("from", "grpc").Handler(), slog.LevelWarn).Writer()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, warnings)) // errors alone, as is gRPC's default
	traces := log.With("from", "opentelemetry")
	otel.SetLogger(logr.FromSlogHandler(traces.Handler()))
	klog.SetLogger(logr.FromSlogHandler(asDebug{log.With("from", "kubernetes").Handler()}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { traces.Warn("traces cannot be sent", "err", err) }))
}

// asDebug makes debug messages of all messages. The libraries of streams report each client that
// hangs up as an error.
type asDebug struct{ slog.Handler }

// Enabled reports whether debug messages are wanted.
func (h asDebug) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle logs a message.
func (h asDebug) Handle(ctx context.Context, r slog.Record) error {
	if !h.Enabled(ctx, r.Level) { // errors come without the question
		return nil
	}
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

// WithAttrs adds attributes to each message.
func (h asDebug) WithAttrs(attrs []slog.Attr) slog.Handler {
	return asDebug{h.Handler.WithAttrs(attrs)}
}

// WithGroup begins a group.
func (h asDebug) WithGroup(name string) slog.Handler { return asDebug{h.Handler.WithGroup(name)} }
