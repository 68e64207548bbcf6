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

// Observe is told of each call that ended. It must not block.
type Observe func(method string, took time.Duration, code codes.Code)

// NewServer makes the gRPC server with all services registered. The caller serves and stops it.
func NewServer(r *Runtime, i *Image, a AdminServer, log *slog.Logger, observe Observe, opts ...grpc.ServerOption) *grpc.Server {
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
		began := time.Now()
		defer func() {
			if p := recover(); p != nil {
				log.Error("call panicked", "method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
				err = status.Error(codes.Internal, fmt.Sprintf("%s panicked: %v; berth's log has the stack", path.Base(info.FullMethod), p))
			}
			err = toStatus(err)
			ended(log, observe, info.FullMethod, began, err)
		}()
		ctx, cancel := early(ctx)
		defer cancel()
		return h(ctx, req)
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
		began := time.Now()
		defer func() {
			err = toStatus(err)
			ended(log, observe, info.FullMethod, began, err)
		}()
		return h(srv, ss)
	}
	s := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))...)
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	runtimeapi.RegisterImageServiceServer(s, i)
	RegisterAdmin(s, a)
	return s
}

// early ends a call a little before its caller stops waiting: what is said then of what was still waited for would else
// reach nobody.
func early(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	const most = 200 * time.Millisecond
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, most)))
}

func ended(log *slog.Logger, observe Observe, method string, began time.Time, err error) {
	took := time.Since(began)
	if observe != nil {
		observe(path.Base(method), took, status.Code(err))
	}
	if err != nil && status.Code(err) != codes.Canceled {
		log.Info("call ended with an error", "method", path.Base(method), "took", took, "err", err)
		return
	}
	log.Debug("call", "method", path.Base(method), "took", took)
}
