// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
)

const (
	// maxWaiting is how many clients may be connected that have not asked for their stream yet. For
	// one more, the oldest of them is hung up on.
	maxWaiting = 128
	// headerTimeout is how long a client may take for its request.
	headerTimeout = 10 * time.Second
	// defaultPatience is how long a client may take to open the streams of its call, and in the end
	// to read how the call has ended.
	defaultPatience = 30 * time.Second
	// farewellTime is how long the calls have to tell their clients that berth stops. It is more than
	// endTimeout.
	farewellTime = time.Second
	// maxPorts is how many ports a client over a WebSocket may ask for: the number of a channel, of
	// which each has two, is a byte.
	maxPorts = 127
	// idleTimeout ends a stream on which nothing comes or goes.
	idleTimeout = 4 * time.Hour
)

// ServerConfig holds the address and the certificates of the server.
type ServerConfig struct {
	Address string      // HOST:PORT; port 0 for one that is free
	TLS     *tls.Config // nil: without TLS
	Logger  *slog.Logger
}

// Server serves the streams of a Service to clients over HTTP, upgraded to WebSocket or SPDY. A
// client needs a URL from a call of CRI, which is good for one request within a minute. Besides the
// token of the request it has a secret of 128 bits in its path.
type Server struct {
	cfg      ServerConfig
	service  *Service
	patience time.Duration // see defaultPatience
	interval time.Duration // see lookInterval

	mu struct {
		sync.Mutex
		base    *url.URL          // of the URLs that it makes; nil: it does not serve
		err     error             // why not
		offers  map[string]*offer // by the path of their URL
		streams map[*offer]bool   // of which the client has come
		conns   map[*conn]bool
		silent  chan struct{} // see farewell; nil if it does not wait
		room    chan struct{} // closed when a port-forward has ended; nil: nothing waits for room
	}
}

// NewServer makes a server, which serves when it runs.
func NewServer(cfg ServerConfig, service *Service) *Server {
	s := &Server{cfg: cfg, service: service, patience: defaultPatience, interval: lookInterval}
	s.mu.err = errors.New("it does not run yet")
	s.mu.conns, s.mu.streams = map[*conn]bool{}, map[*offer]bool{}
	return s
}

// Run serves until ctx ends, and returns nil then. Otherwise it returns the reason why it cannot
// serve; it may be run again.
func (s *Server) Run(ctx context.Context) error {
	err := s.run(ctx)
	s.use(nil, err)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) run(ctx context.Context) error {
	lis, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for streams on %s: %w", s.cfg.Address, err)
	}
	defer lis.Close()
	base := &url.URL{Scheme: "http", Host: lis.Addr().String(), Path: "/" + rand.Text() + "/"}
	if s.cfg.TLS != nil {
		base.Scheme = "https"
	}
	var accept net.Listener = listener{lis, s}
	if s.cfg.TLS != nil {
		accept = tls.NewListener(accept, s.cfg.TLS)
	}
	s.use(base, nil)
	return s.answer(ctx, gates{accept, s})
}

// answer answers the requests on connections until ctx ends, and hangs up on all clients then.
func (s *Server) answer(ctx context.Context, accept net.Listener) (err error) {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		MaxHeaderBytes:    maxHeaders,
		ConnContext:       connContext,
		ConnState:         connState,
		// HTTP/2 cannot be upgraded
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ErrorLog:     slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // a URL is good for one request
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(accept) }()
	look := time.NewTicker(s.interval)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			s.look()
			continue
		case <-ctx.Done():
			s.farewell()
			_ = server.Close()
			err = <-ended // it returns that the server was closed
		case err = <-ended:
			_ = server.Close()
		}
		s.hangUp() // also connections that are not HTTP any more
		return err
	}
}

// farewell lets the calls of exec and attach tell their clients that berth stops, which they do at
// once, because a client takes a connection that ends without an answer for a command that has
// succeeded. A slow call is not waited for. No client is accepted any more.
func (s *Server) farewell() {
	s.use(nil, fmt.Errorf("berth stops: %w", errdefs.ErrUnavailable))
	silent := make(chan struct{})
	s.mu.Lock()
	s.mu.silent = silent
	s.silentLocked()
	s.mu.Unlock()
	t := time.NewTimer(farewellTime)
	defer t.Stop()
	select {
	case <-silent:
	case <-t.C:
	}
}

// silentLocked closes the channel of farewell when no call of exec and attach is left, and each
// client has the end.
func (s *Server) silentLocked() {
	if s.mu.silent == nil {
		return
	}
	for o := range s.mu.streams {
		if o.of == s.service.streams {
			return
		}
	}
	for c := range s.mu.conns {
		if c.parted != nil {
			return
		}
	}
	close(s.mu.silent)
	s.mu.silent = nil
}

// use makes URLs below base from now on, or none if it is nil. Earlier ones are not served any
// more.
func (s *Server) use(base *url.URL, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.base, s.mu.err = base, err
	for _, o := range s.mu.offers {
		o.of.Give(o.pod, 1)
	}
	s.mu.offers = map[string]*offer{}
}

// Exec returns the URL at which a client runs a command in a container.
func (s *Server) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if len(req.GetCmd()) == 0 {
		return nil, fmt.Errorf("exec in container %s: cmd is empty: %w", req.GetContainerId(), errdefs.ErrInvalidArgument)
	}
	t, err := s.service.container(req.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", req.GetContainerId(), err)
	}
	by := event.ClientOf(ctx)
	want := streams{stdin: req.GetStdin(), stdout: req.GetStdout(), stderr: req.GetStderr()}
	at, err := s.issueRemote("exec", t.PodID, want, req.GetTty(), func(ctx context.Context, c client) error {
		return s.service.Exec(event.WithClient(ctx, by), t.ID, req.GetCmd(), c.stdin, c.stdout, c.stderr, req.GetTty(), c.resize)
	})
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", req.GetContainerId(), err)
	}
	return &runtimeapi.ExecResponse{Url: at}, nil
}

// Attach returns the URL at which a client is connected with a container's own process.
func (s *Server) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	t, err := s.service.container(req.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("attach to container %s: %w", req.GetContainerId(), err)
	}
	by := event.ClientOf(ctx)
	want := streams{stdin: req.GetStdin(), stdout: req.GetStdout(), stderr: req.GetStderr()}
	at, err := s.issueRemote("attach", t.PodID, want, req.GetTty(), func(ctx context.Context, c client) error {
		return s.service.Attach(event.WithClient(ctx, by), t.ID, c.stdin, c.stdout, c.stderr, req.GetTty(), c.resize)
	})
	if err != nil {
		return nil, fmt.Errorf("attach to container %s: %w", req.GetContainerId(), err)
	}
	return &runtimeapi.AttachResponse{Url: at}, nil
}

// issueRemote makes the URL of an exec or attach.
func (s *Server) issueRemote(kind, pod string, want streams, terminal bool, run func(context.Context, client) error) (string, error) {
	switch {
	case want == streams{}:
		return "", fmt.Errorf("none of stdin, stdout and stderr is set: %w", errdefs.ErrInvalidArgument)
	case terminal && want.stderr:
		return "", fmt.Errorf("tty and stderr are both set, and a terminal has no standard error: %w", errdefs.ErrInvalidArgument)
	}
	call := remoteCall{
		streams:  want,
		terminal: terminal,
		patience: s.patience,
		run:      run,
	}
	return s.issue(kind, s.service.streams, pod, func(*offer) http.HandlerFunc { return call.serve })
}

// PortForward returns the URL at which a client is connected with ports of a pod.
func (s *Server) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	t, err := s.service.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("forward ports of pod %s: %w", req.GetPodSandboxId(), err)
	}
	if n := len(req.GetPort()); n > maxPorts {
		return nil, fmt.Errorf("forward ports of pod %s: %d ports are asked for at a time, and %d are possible: %w",
			req.GetPodSandboxId(), n, maxPorts, errdefs.ErrInvalidArgument)
	}
	for _, p := range req.GetPort() {
		if p < 1 || p > 65535 {
			return nil, fmt.Errorf("forward ports of pod %s: there is no port %d: %w", req.GetPodSandboxId(), p, errdefs.ErrInvalidArgument)
		}
	}
	by := event.ClientOf(ctx)
	at, err := s.issueWithin(ctx, t.PodID, func(o *offer) http.HandlerFunc {
		return forwardCall{
			ports:    req.GetPort(),
			patience: s.patience,
			run: func(ctx context.Context, port int32, stream io.ReadWriteCloser) error {
				return s.service.PortForward(event.WithClient(ctx, by), t.ID, port, touching{stream, o})
			},
		}.serve
	})
	if err != nil {
		return nil, fmt.Errorf("forward ports of pod %s: %w", req.GetPodSandboxId(), err)
	}
	return &runtimeapi.PortForwardResponse{Url: at}, nil
}

// touching is the client's side of a connection that is forwarded, which notes that something came
// or went.
type touching struct {
	io.ReadWriteCloser
	o *offer
}

// Read reads from the client.
func (t touching) Read(b []byte) (int, error) {
	n, err := t.ReadWriteCloser.Read(b)
	t.o.touch()
	return n, err
}

// Write writes the pod's data.
func (t touching) Write(b []byte) (int, error) {
	t.o.touch()
	return t.ReadWriteCloser.Write(b)
}
