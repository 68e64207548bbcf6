// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Observer is notified of calls. Its methods must not block. A method's name comes without its
// service, such as StopContainer.
type Observer interface {
	// Called reports a call that ended.
	Called(method string, took time.Duration, code codes.Code)
	// Panicked reports a call that ended with a panic. Called follows.
	Panicked(method string)
}

// Server is a gRPC server of CRI and berth.v1.Admin. The caller serves it, and ends it with Drain
// or Stop.
type Server struct {
	*grpc.Server
	log      *slog.Logger
	observer Observer
	ending   chan struct{} // closed when streams are to end

	mu struct {
		sync.Mutex
		unary   int            // calls in flight
		conns   map[*conn]bool // open connections
		changed chan struct{}  // nil unless a waiter has asked for a change, which closes it

		lis       []net.Listener // of each call of Serve
		accepting int            // calls of Serve that accept connections
		draining  bool           // Drain was called
	}
}

// NewServer makes a server with all services registered.
func NewServer(r *Runtime, i *Image, a AdminServer, log *slog.Logger, observer Observer, opts ...grpc.ServerOption) *Server {
	s := &Server{log: log, observer: observer, ending: make(chan struct{})}
	s.mu.conns = map[*conn]bool{}
	if !r.EncodeAgain {
		opts = append(opts, grpc.ForceServerCodecV2(newCodec()))
	}
	s.Server = grpc.NewServer(append(opts,
		grpc.Creds(local{}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.UnaryInterceptor(s.interceptUnary),
		grpc.StreamInterceptor(s.interceptStream),
	)...)
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	runtimeapi.RegisterImageServiceServer(s, i)
	RegisterAdmin(s, a)
	return s
}

func (s *Server) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
	s.change(func() { s.mu.unary++ })
	defer s.change(func() { s.mu.unary-- })
	began := time.Now()
	defer func() { err = s.ended(info.FullMethod, began, err, recover()) }()
	ctx, cancel := early(called(ctx))
	defer cancel()
	return h(ctx, req)
}

func (s *Server) interceptStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	began := time.Now()
	defer func() { err = s.ended(info.FullMethod, began, err, recover()) }()
	ctx, cancel := context.WithCancelCause(called(ss.Context()))
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-s.ending:
			cancel(errEnding)
		case <-done:
		}
	}()
	return h(srv, endingStream{ss, ctx})
}

// early ends a call a little before its caller stops waiting. Otherwise the error that names the
// cause of the delay would not be read.
func early(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	const most = 200 * time.Millisecond
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, most)))
}

// ended turns the result of a call, or the value of its panic, into a gRPC error, and reports it.
// It runs on the stack of the panic, which it logs.
func (s *Server) ended(fullMethod string, began time.Time, err error, panicked any) error {
	method, took := path.Base(fullMethod), time.Since(began)
	if panicked != nil {
		s.log.Error("call panicked", "method", method, "panic", panicked, "stack", string(debug.Stack()))
		s.observer.Panicked(method)
		err = status.Error(codes.Internal, fmt.Sprintf("%s panicked: %v; the log of berth has the stack", method, panicked))
	}
	err = toStatus(err)
	s.observer.Called(method, took, status.Code(err))
	if err != nil && status.Code(err) != codes.Canceled {
		s.log.Info("call ended with an error", "method", method, "took", took, "err", err)
	} else {
		s.log.Debug("call", "method", method, "took", took)
	}
	return err
}
