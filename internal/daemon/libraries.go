// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"google.golang.org/grpc/grpclog"
)

// bridgeLibraries sends what libraries log to log. Left alone they write to standard error themselves,
// and wait for whoever reads that. It has to be called before gRPC is used.
func bridgeLibraries(log *slog.Logger) {
	slog.SetDefault(log) // and with it package log of the standard library
	warnings := slog.NewLogLogger(log.With("from", "grpc").Handler(), slog.LevelWarn).Writer()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, warnings)) // errors alone, as is gRPC's default
	traces := log.With("from", "opentelemetry")
	otel.SetLogger(logr.FromSlogHandler(traces.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { traces.Warn("traces cannot be sent", "err", err) }))
}
