// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
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
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

const (
	// maxConnections is how many clients the server serves at a time. For one more, the oldest without
	// a stream is hung up on, or if all have one, the newest.
	maxConnections = 1024
	// headerTimeout is how long a client may take for its request.
	headerTimeout = 10 * time.Second
	// idleTimeout ends a stream on which nothing comes or goes.
	idleTimeout = 4 * time.Hour
)

// ServerConfig says where and how streams are served.
type ServerConfig struct {
	Address string      // HOST:PORT; port 0 for one that is free
	TLS     *tls.Config // nil: without TLS
	Logger  *slog.Logger
}

// Server serves the streams of a Service to clients over HTTP, upgraded to WebSocket or SPDY. A
// client needs a URL that a call of CRI has given, which is good for one request within a minute.
// Besides the token of the request it has a secret of 128 bits in its path.
type Server struct {
	cfg     ServerConfig
	service *Service

	mu struct {
		sync.Mutex
		urls  streaming.Server // nil: it does not serve
		err   error            // why not
		conns map[*conn]bool
	}
}

// NewServer makes a server, which serves when it runs.
func NewServer(cfg ServerConfig, service *Service) *Server {
	s := &Server{cfg: cfg, service: service}
	s.mu.err = errors.New("it does not run yet")
	s.mu.conns = map[*conn]bool{}
	return s
}

// Run serves until ctx ends, and returns nil then. Otherwise the error says why it cannot serve; it
// may be run again.
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
	config := streaming.DefaultConfig
	config.Addr = lis.Addr().String()
	config.StreamIdleTimeout = idleTimeout
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr, Path: "/" + newID() + "/"}
	if s.cfg.TLS != nil {
		config.BaseURL.Scheme = "https"
	}
	handler, err := streaming.NewServer(config, wanted{s.service})
	if err != nil {
		return fmt.Errorf("serve streams: %w", err)
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       headerTimeout,
		ConnContext:       connContext,
		ConnState:         connState,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // HTTP/2 cannot be upgraded
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
	var accept net.Listener = listener{lis, s}
	if s.cfg.TLS != nil {
		accept = tls.NewListener(accept, s.cfg.TLS)
	}
	s.use(handler, nil)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(accept) }()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			s.look()
			continue
		case <-ctx.Done():
			_ = server.Close()
			err = <-ended // it says that it was closed
		case err = <-ended:
			_ = server.Close()
		}
		s.hangUp() // also on what is not HTTP any more
		return err
	}
}

func (s *Server) use(urls streaming.Server, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.urls, s.mu.err = urls, err
}

func (s *Server) serving() (streaming.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.urls == nil {
		return nil, fmt.Errorf("the streaming server does not serve: %w: %w", s.mu.err, errdefs.ErrUnavailable)
	}
	return s.mu.urls, nil
}

// Exec returns the URL at which a client runs a command in a container.
func (s *Server) Exec(req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if len(req.GetCmd()) == 0 {
		return nil, fmt.Errorf("exec in container %s: cmd is empty: %w", req.GetContainerId(), errdefs.ErrInvalidArgument)
	}
	t, err := s.service.container(req.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", req.GetContainerId(), err)
	}
	urls, err := s.serving()
	if err != nil {
		return nil, err
	}
	return urls.GetExec(&runtimeapi.ExecRequest{
		ContainerId: streams{req.GetStdin(), req.GetStdout(), req.GetStderr()}.of(t.ID),
		Cmd:         req.GetCmd(),
		Tty:         req.GetTty(),
		Stdin:       req.GetStdin(),
		Stdout:      req.GetStdout(),
		Stderr:      req.GetStderr(),
	})
}

// Attach returns the URL at which a client is connected with a container's own process.
func (s *Server) Attach(req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	t, err := s.service.container(req.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("attach to container %s: %w", req.GetContainerId(), err)
	}
	urls, err := s.serving()
	if err != nil {
		return nil, err
	}
	return urls.GetAttach(&runtimeapi.AttachRequest{
		ContainerId: streams{req.GetStdin(), req.GetStdout(), req.GetStderr()}.of(t.ID),
		Stdin:       req.GetStdin(),
		Tty:         req.GetTty(),
		Stdout:      req.GetStdout(),
		Stderr:      req.GetStderr(),
	})
}

// PortForward returns the URL at which a client is connected with ports of a pod.
func (s *Server) PortForward(req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	if _, err := s.service.sandbox(req.GetPodSandboxId()); err != nil {
		return nil, fmt.Errorf("forward ports of pod %s: %w", req.GetPodSandboxId(), err)
	}
	for _, p := range req.GetPort() {
		if p < 1 || p > 65535 {
			return nil, fmt.Errorf("forward ports of pod %s: there is no port %d: %w", req.GetPodSandboxId(), p, errdefs.ErrInvalidArgument)
		}
	}
	urls, err := s.serving()
	if err != nil {
		return nil, err
	}
	return urls.GetPortForward(req)
}

// wanted is a Service for cri-streaming. Over a WebSocket, cri-streaming hands over a stream that the
// client does not want like one that it wants: input that is at its end at once. That would close the
// stdin of a container that wants it to end with its first client. So the streams that are wanted
// go into the ID of the container, which cri-streaming passes on as it is.
type wanted struct{ *Service }

var _ streaming.Runtime = wanted{}

// of adds the streams to the ID of a container.
func (w streams) of(id string) string {
	mark := func(wanted bool) string {
		if wanted {
			return "1"
		}
		return "0"
	}
	return mark(w.stdin) + mark(w.stdout) + mark(w.stderr) + id
}

// mask undoes what of does, and leaves out the streams that are not wanted.
func mask(marked string, c client) (id string, only client) {
	const marks = 3
	if len(marked) < marks {
		return marked, c
	}
	if marked[0] == '0' {
		c.stdin = nil
	}
	if marked[1] == '0' {
		c.stdout = nil
	}
	if marked[2] == '0' {
		c.stderr = nil
	}
	return marked[marks:], c
}

// Exec runs a command with the streams that are wanted.
func (w wanted) Exec(ctx context.Context, marked string, args []string, stdin io.Reader, stdout, stderr io.WriteCloser,
	terminal bool, resize <-chan remotecommand.TerminalSize,
) error {
	id, c := mask(marked, client{stdin, stdout, stderr, resize})
	return w.Service.Exec(ctx, id, args, c.stdin, c.stdout, c.stderr, terminal, c.resize)
}

// Attach connects the streams that are wanted.
func (w wanted) Attach(ctx context.Context, marked string, stdin io.Reader, stdout, stderr io.WriteCloser,
	terminal bool, resize <-chan remotecommand.TerminalSize,
) error {
	id, c := mask(marked, client{stdin, stdout, stderr, resize})
	return w.Service.Attach(ctx, id, c.stdin, c.stdout, c.stderr, terminal, c.resize)
}
