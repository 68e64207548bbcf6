// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"berth/test/client"
)

// codeError is how cri-streaming gets an exit code.
type codeError int

func (c codeError) Error() string   { return fmt.Sprint("ended with ", int(c)) }
func (c codeError) ExitStatus() int { return int(c) }
func (c codeError) Exited() bool    { return true }
func (c codeError) String() string  { return c.Error() }

// programs is what runs in the containers of a fake: it reads lines. "exit N" ends it, "err TEXT"
// goes to the standard error, "size" waits for the size of the terminal and writes it, and "lose"
// cuts the connection off. Anything else is quoted.
type programs struct {
	mu    sync.Mutex
	conns []net.Conn
}

// connected is a listener that notes the connections.
type connected struct {
	net.Listener
	p *programs
}

func (c connected) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.conns = append(c.p.conns, conn)
	return conn, err
}

func (p *programs) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

func (p *programs) run(stdin io.Reader, stdout, stderr io.Writer, resize <-chan remotecommand.TerminalSize) error {
	if stdin == nil {
		fmt.Fprintln(stdout, "no input")
		return nil
	}
	in := bufio.NewReader(stdin)
	for {
		line, err := in.ReadString('\n')
		if c, rest, ok := strings.Cut(line, "\x03"); ok { // a terminal in raw mode sends no newline with it
			fmt.Fprintf(stdout, "interrupted %q %q\n", c, rest)
			continue
		}
		line = strings.TrimRight(line, "\r\n")
		if err != nil {
			fmt.Fprintf(stdout, "end of input after %q\n", line)
			return nil
		}
		verb, arg, _ := strings.Cut(line, " ")
		switch verb {
		case "exit":
			code, _ := strconv.Atoi(arg)
			if code == 0 {
				return nil
			}
			return codeError(code)
		case "err":
			fmt.Fprintln(stderr, arg)
		case "size":
			for s := range resize {
				fmt.Fprintf(stdout, "size %dx%d\n", s.Width, s.Height)
				if fmt.Sprintf("%dx%d", s.Width, s.Height) == arg {
					break
				}
			}
		case "refuse":
			return errors.New("exec in container c: no such file")
		case "absent":
			return errors.New("exec in container c: unable to start container process: exec: \"x\": executable file not found in $PATH")
		case "lose":
			p.lose()
			return nil
		default:
			fmt.Fprintf(stdout, "got %q\n", line)
		}
	}
}

func (p *programs) Exec(_ context.Context, _ string, _ []string, stdin io.Reader, stdout, stderr io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	return p.run(stdin, stdout, stderr, resize)
}

func (p *programs) Attach(_ context.Context, _ string, stdin io.Reader, stdout, stderr io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize,
) error {
	return p.run(stdin, stdout, stderr, resize)
}

// PortForward quotes everything until the end of the input. Nothing listens on port 9.
func (p *programs) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	if port == 9 {
		return fmt.Errorf("connection refused")
	}
	b, err := io.ReadAll(stream)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stream, "port %d got %q", port, b)
	return err
}

// serveStreams serves the streams of f until the test ends.
func serveStreams(t *testing.T, f *fake) {
	t.Helper()
	p := &programs{}
	server := httptest.NewUnstartedServer(nil)
	server.Listener = connected{server.Listener, p}
	config := streaming.DefaultConfig
	config.Addr = server.Listener.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr}
	var err error
	if f.streams, err = streaming.NewServer(config, p); err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = f.streams
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(p.lose)
}

func (f *fake) Exec(_ context.Context, r *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	f.mu.Lock()
	f.call("exec %s %v", r.GetContainerId(), r.GetCmd())
	f.mu.Unlock()
	if f.execURL != "" {
		return &runtimeapi.ExecResponse{Url: f.execURL}, nil
	}
	if f.streams == nil {
		return nil, status.Error(codes.Unavailable, "the streaming server does not serve")
	}
	return f.streams.GetExec(r)
}

func (f *fake) Attach(_ context.Context, r *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return f.streams.GetAttach(r)
}

func (f *fake) PortForward(_ context.Context, r *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return f.streams.GetPortForward(r)
}

func (f *fake) CheckpointContainer(_ context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("checkpoint %s %s %d", r.GetContainerId(), r.GetLocation(), r.GetTimeout())
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

func (f *fake) CheckpointPod(_ context.Context, r *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("checkpoint pod %s %s %s", r.GetPodSandboxId(), r.GetOutputPath(), r.GetContainerIds())
	if f.refuseRun != nil {
		return nil, f.refuseRun
	}
	return &runtimeapi.CheckpointPodResponse{}, nil
}

func (f *fake) RestorePod(_ context.Context, r *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.call("restore pod %s %s %s", r.GetCheckpointPath(), r.GetRuntimeHandler(), r.GetConfig().GetMetadata().GetName())
	resp := &runtimeapi.RestorePodResponse{PodSandboxId: "aaa999"}
	for _, c := range r.GetContainerConfigs() {
		resp.RestoredContainers = append(resp.RestoredContainers, &runtimeapi.RestoredContainer{Name: c.GetMetadata().GetName(), ContainerId: "bbb222"})
	}
	return resp, nil
}

func (f *fake) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ListContainerStatsResponse{Stats: f.stats}, nil
}

// person sits at a pseudo terminal.
type person struct {
	*client.Terminal
	screen *lines // what has been shown
	before string // the mode of the terminal
}

// sitDown makes a pseudo terminal of this size.
func sitDown(t *testing.T, width, height uint16) *person {
	t.Helper()
	p := &person{screen: &lines{}}
	p.Terminal = client.OpenTerminal(t, width, height, p.screen)
	p.before = p.mode(t)
	return p
}

// waitRaw waits until the terminal is in raw mode: before, it shows what is typed.
func (p *person) waitRaw(t *testing.T) {
	t.Helper()
	for range 10_000 {
		if p.mode(t) != p.before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("the terminal is not put into raw mode")
}

// mode is the state of the terminal, to compare.
func (p *person) mode(t *testing.T) string {
	t.Helper()
	st, err := term.GetState(int(p.TTY.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(*st)
}

// begin runs a command at the terminal.
func (p *person) begin(ctx context.Context, endpoint string, args ...string) <-chan error {
	cmd := app{patience: defaultPatience}.root()
	cmd.SetArgs(append([]string{"--endpoint", endpoint}, args...))
	cmd.SetIn(p.TTY)
	cmd.SetOut(p.TTY)
	cmd.SetErr(p.TTY)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	return ended
}

// dial connects to an address that a command has printed.
func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}
