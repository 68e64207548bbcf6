// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/internal/base/ops"
	"berth/internal/base/version"
)

// Observer is notified of calls. Its methods must not block. A method's name comes without its
// service, such as StopContainer.
type Observer interface {
	// Called reports a call that ended.
	Called(method string, took time.Duration, code codes.Code)
	// Panicked reports a call that ended with a panic. Called follows.
	Panicked(method string)
}

// Server is a gRPC server. The caller registers further services, serves it, and ends it with Drain
// or Stop.
type Server struct {
	*grpc.Server
	log      *slog.Logger
	observer Observer
	list     *ops.List
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

// NewServer makes a server of CRI.
func NewServer(r *Runtime, i *Image, log *slog.Logger, observer Observer, list *ops.List, opts ...grpc.ServerOption) *Server {
	if !r.EncodeAgain {
		opts = append(opts, grpc.ForceServerCodecV2(newCodec()))
	}
	s := NewServerWithoutCRI(log, observer, list, opts...)
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	s.RegisterService(ImageService(), i)
	return s
}

// NewServerWithoutCRI makes a server without any service. Its calls are in list.
func NewServerWithoutCRI(log *slog.Logger, observer Observer, list *ops.List, opts ...grpc.ServerOption) *Server {
	s := &Server{log: log, observer: observer, list: list, ending: make(chan struct{})}
	s.mu.conns = map[*conn]bool{}
	s.Server = grpc.NewServer(append(opts,
		grpc.Creds(local{}),
		grpc.MaxRecvMsgSize(client.MaxMessage),
		grpc.MaxSendMsgSize(client.MaxMessage),
		grpc.UnaryInterceptor(s.interceptUnary),
		grpc.StreamInterceptor(s.interceptStream),
		grpc.UnknownServiceHandler(unknown),
	)...)
	return s
}

// unknown answers a call of a method that is not registered. berth.v1.Admin had no contract, and
// was replaced by berth.v1.Node and berth.v1.Control: the commands of that berth print this error,
// so that a person learns which command to use.
func unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if strings.HasPrefix(method, "/berth.v1.Admin/") {
		return status.Errorf(codes.FailedPrecondition,
			"this command is older than the service, berth %s: use the berth command of that version", version.String())
	}
	return status.Errorf(codes.Unimplemented, "unknown method %s", method)
}

func (s *Server) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
	s.change(func() { s.mu.unary++ })
	defer s.change(func() { s.mu.unary-- })
	began, w := time.Now(), workOf(path.Base(info.FullMethod), req)
	defer func() { err = s.ended(info.FullMethod, w.Of, began, err, recover()) }()
	ctx, cancel := early(called(ctx))
	defer cancel()
	ctx, op := s.list.Begin(ctx, w)
	defer op.End()
	return h(ctx, req)
}

func (s *Server) interceptStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	began := time.Now()
	defer func() { err = s.ended(info.FullMethod, ops.Object{}, began, err, recover()) }()
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

// ended turns the result of a call about an object, or the value of its panic, into a gRPC error,
// and reports it. It runs on the stack of the panic, which it logs.
func (s *Server) ended(fullMethod string, of ops.Object, began time.Time, err error, panicked any) error {
	method, took := path.Base(fullMethod), time.Since(began)
	if panicked != nil {
		s.log.Error("call panicked", "method", method, "panic", panicked, "stack", string(debug.Stack()))
		s.observer.Panicked(method)
		err = status.Error(codes.Internal, fmt.Sprintf("%s panicked: %v; the log of berth has the stack", method, panicked))
	}
	err = toStatus(err)
	s.observer.Called(method, took, status.Code(err))
	if err != nil && status.Code(err) != codes.Canceled {
		s.log.Info("call ended with an error", append(s.list.Attrs(of), "method", method, "took", took, "err", err)...)
	} else {
		s.log.Debug("call", "method", method, "took", took)
	}
	return err
}
