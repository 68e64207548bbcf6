// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Observer is told what happens to calls. Its methods must not block. A method's name comes without its
// service, such as StopContainer.
type Observer interface {
	// Called reports a call that ended.
	Called(method string, took time.Duration, code codes.Code)
	// Panicked reports a call that ended with a panic. Called follows.
	Panicked(method string)
}

// NewServer makes the gRPC server with all services registered. The caller serves it and stops it.
func NewServer(r *Runtime, i *Image, a AdminServer, log *slog.Logger, observer Observer, opts ...grpc.ServerOption) *grpc.Server {
	c := calls{log, observer}
	s := grpc.NewServer(append(opts,
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(c.unary),
		grpc.StreamInterceptor(c.stream),
	)...)
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	runtimeapi.RegisterImageServiceServer(s, i)
	RegisterAdmin(s, a)
	return s
}

// calls is what every call passes through.
type calls struct {
	log      *slog.Logger
	observer Observer
}

func (c calls) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
	began := time.Now()
	defer func() { err = c.ended(info.FullMethod, began, err, recover()) }()
	ctx, cancel := early(ctx)
	defer cancel()
	return h(ctx, req)
}

func (c calls) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	began := time.Now()
	defer func() { err = c.ended(info.FullMethod, began, err, recover()) }()
	return h(srv, ss)
}

// early ends a call a little before its caller stops waiting. Otherwise nobody would read the error that
// says what the call was still waiting for.
func early(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	const most = 200 * time.Millisecond
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, most)))
}

// ended turns the result of a call, or what it panicked with, into a gRPC error, and reports it. It runs
// on the stack of the panic, which it logs.
func (c calls) ended(fullMethod string, began time.Time, err error, panicked any) error {
	method, took := path.Base(fullMethod), time.Since(began)
	if panicked != nil {
		c.log.Error("call panicked", "method", method, "panic", panicked, "stack", string(debug.Stack()))
		c.observer.Panicked(method)
		err = status.Error(codes.Internal, fmt.Sprintf("%s panicked: %v; the log of berth has the stack", method, panicked))
	}
	err = toStatus(err)
	c.observer.Called(method, took, status.Code(err))
	if err != nil && status.Code(err) != codes.Canceled {
		c.log.Info("call ended with an error", "method", method, "took", took, "err", err)
	} else {
		c.log.Debug("call", "method", method, "took", took)
	}
	return err
}
