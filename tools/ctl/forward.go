// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"berth/api/client"
)

func forwardCommand(svc *service) *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "port-forward POD [LOCAL:]REMOTE...",
		Short: "Forward local ports to ports of a pod",
		Long: "Listen on local ports and forward each connection to a port of the pod's loopback interface, until Ctrl-C. LOCAL\n" +
			"is REMOTE if it is left out, and any free port if it is 0. Each connection has a stream of its own, so that one\n" +
			"that nobody reads does not hold up the others, and forwarding goes on when berth was restarted.",
		Example:           "  berth port-forward web 8080:80",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: svc.complete(pods, running, one),
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "local address to listen on; other hosts reach the pod through any but a loopback address")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ports := make([]portPair, 0, len(args)-1)
		for _, arg := range args[1:] {
			p, err := parsePorts(arg)
			if err != nil {
				return err
			}
			ports = append(ports, p)
		}
		return svc.client(cmd, func(ctx context.Context, c *client.Client) error {
			o, err := resolve(ctx, c, args[0], true, false)
			if err != nil {
				return err
			}
			f := forwarder{svc: svc, client: c, pod: o, out: &lockedWriter{w: cmd.OutOrStdout()}, err: &lockedWriter{w: cmd.ErrOrStderr()}}
			return f.run(ctx, address, ports)
		})
	}
	return cmd
}

// portPair is a local port and the port of a pod that it stands for.
type portPair struct{ local, remote uint16 }

// parsePorts reads [LOCAL:]REMOTE.
func parsePorts(s string) (portPair, error) {
	local, remote, two := strings.Cut(s, ":")
	if !two {
		remote = local
	}
	l, lerr := strconv.ParseUint(local, 10, 16)
	r, rerr := strconv.ParseUint(remote, 10, 16)
	if lerr != nil || rerr != nil || r == 0 {
		return portPair{}, fmt.Errorf("%q is not a port, or LOCAL:REMOTE", s)
	}
	return portPair{uint16(l), uint16(r)}, nil
}

// lockedWriter takes whole lines from several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

type forwarder struct {
	svc      *service
	client   *client.Client
	pod      object
	out, err io.Writer
}

// run listens on all ports before it accepts on any, and serves them.
func (f *forwarder) run(ctx context.Context, address string, ports []portPair) error {
	listeners := make([]net.Listener, 0, len(ports))
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	// The pod is asked once before anybody connects: it may not be READY.
	if _, err := f.client.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: f.pod.id}); err != nil {
		return err
	}
	var config net.ListenConfig
	for _, p := range ports {
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(p.local))))
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		fmt.Fprintf(f.out, "forwarding %s to port %d of pod %s\n", l.Addr(), p.remote, f.pod.name)
	}
	return f.serve(ctx, listeners, ports)
}

// serve accepts connections and forwards them until ctx ends. A listener that fails is closed, so
// that clients are refused instead of waiting for ever. It returns the error of the last listener,
// once the connections that were accepted before have ended.
func (f *forwarder) serve(ctx context.Context, listeners []net.Listener, ports []portPair) (err error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, len(listeners))
	for i, l := range listeners {
		wg.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					_ = l.Close()
					failed <- fmt.Errorf("port %d: accept a connection on %s: %w", ports[i].remote, l.Addr(), err)
					return
				}
				wg.Go(func() {
					defer conn.Close()
					if err := f.forward(ctx, conn, ports[i].remote); err != nil && ctx.Err() == nil {
						fmt.Fprintf(f.err, "port %d: %v\n", ports[i].remote, client.Explain(err))
					}
				})
			}
		})
	}
	for range listeners {
		select {
		case err = <-failed:
			fmt.Fprintf(f.err, "%v; this port is not forwarded any more\n", err)
		case <-ctx.Done():
			for _, l := range listeners {
				_ = l.Close()
			}
			return nil
		}
	}
	return fmt.Errorf("no port is left: %w", err)
}

// forward connects one client with a port of the pod until both directions have ended.
func (f *forwarder) forward(ctx context.Context, conn net.Conn, port uint16) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	resp, err := f.client.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: f.pod.id, Port: []int32{int32(port)}})
	if err != nil {
		return err
	}
	streams, err := f.svc.connect(ctx, resp.GetUrl(), portforward.ProtocolV1Name)
	if err != nil {
		return err
	}
	defer streams.Close()
	headers := func(kind string) http.Header {
		h := http.Header{}
		h.Set(portforward.StreamType, kind)
		h.Set(portforward.PortHeader, strconv.Itoa(int(port)))
		h.Set(portforward.PortForwardRequestIDHeader, "0")
		return h
	}
	problem, err := openStream(ctx, streams, headers(portforward.StreamTypeError))
	if err != nil {
		return err
	}
	_ = problem.Close() // nothing is sent on it
	data, err := openStream(ctx, streams, headers(portforward.StreamTypeData))
	if err != nil {
		return err
	}
	go func() { // it ends when conn is closed
		_, _ = io.Copy(data, conn)
		_ = data.Close()
	}()
	_, _ = io.Copy(conn, data)
	if said, _ := io.ReadAll(io.LimitReader(problem, 1<<16)); len(said) > 0 {
		return errors.New(strings.TrimSpace(string(said)))
	}
	return nil
}
