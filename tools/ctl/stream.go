// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	mobyterm "github.com/moby/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"berth/internal/base/peercred"
)

// pingInterval is how often a stream's connection is checked, so that the silent loss of the
// service is noticed.
const pingInterval = 10 * time.Second

// streamsSuffix is appended to the path of the CRI socket for the socket of streams, which serves
// commands that do not reach the address in the URL (streams.socket).
const streamsSuffix = ".streams"

// connect opens the URL of a stream, speaking SPDY: through the socket beside that of CRI, if it
// has a trusted listener, and otherwise at the address. The connection is closed when ctx ends.
func (svc *service) connect(ctx context.Context, at string, protocols ...string) (httpstream.Connection, error) {
	quiet()
	trusted, err := svc.trusted()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	for _, p := range protocols {
		req.Header.Add(httpstream.HeaderProtocolVersion, p)
	}
	cfg := spdy.RoundTripperConfig{PingPeriod: pingInterval}
	secure := &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
	to, socket := req.URL.Host, strings.TrimPrefix(svc.endpoint, "unix://")+streamsSuffix
	who := svc.listener
	if who == nil {
		who = peer
	}
	through, untrusted := dialTrusted(ctx, socket, who)
	if through != nil {
		to, secure.ServerName = socket, req.URL.Hostname()
		req.URL.Host = "localhost" // for which no proxy is asked
		cfg.UpgradeTransport = &http.Transport{
			DialContext:     func(context.Context, string, string) (net.Conn, error) { return through, nil },
			TLSClientConfig: secure,
		}
	} else {
		cfg.TLS = secure
		// the service is on this node
		cfg.Proxier = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	upgrade, err := spdy.NewRoundTripperWithConfig(cfg)
	if err != nil {
		return nil, err
	}
	resp, err := upgrade.RoundTrip(req)
	if err != nil && untrusted != nil {
		return nil, fmt.Errorf("connect to the streaming server at %s: %w; the other way to it is not taken: %w", to, err, untrusted)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the streaming server at %s: %w", to, err)
	}
	defer resp.Body.Close()
	conn, err := upgrade.NewConnection(resp)
	if err != nil {
		return nil, fmt.Errorf("connect to the streaming server at %s: %w", to, err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, nil
}

// dialTrusted connects with a socket on which root or this user listens; nil if there is none. Any
// user may have made the socket if the directory permits it, and its listener gets the URL, and the
// keys typed. If there is a listener that is not trusted, it returns an error.
func dialTrusted(ctx context.Context, socket string, who func(*net.UnixConn) (uid int, err error)) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil
	}
	uid, err := who(conn.(*net.UnixConn))
	switch {
	case err != nil:
		err = fmt.Errorf("it cannot be found out who listens on %s: %w", socket, err)
	case !mayListen(uid, os.Geteuid()):
		err = fmt.Errorf("user %d listens on %s, and is neither root nor this user", uid, socket)
	default:
		return conn, nil
	}
	_ = conn.Close()
	return nil, err
}

// mayListen reports whether a command of user trusts the listener of a socket.
func mayListen(listener, user int) bool { return listener == 0 || listener == user }

// peer returns who listens at the other end of a connection.
func peer(conn *net.UnixConn) (uid int, err error) {
	cred, err := peercred.Of(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}

// openStream opens one stream of a connection. It returns when ctx ends, which the library, waiting
// for the server's answer, would not notice for half a minute.
func openStream(ctx context.Context, conn httpstream.Connection, headers http.Header) (httpstream.Stream, error) {
	type answer struct {
		stream httpstream.Stream
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		s, err := conn.CreateStream(headers)
		answered <- answer{s, err}
	}()
	select {
	case a := <-answered:
		return a.stream, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// quiet keeps the libraries of Kubernetes from writing to the terminal. Their messages are also in
// the errors.
var quiet = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// trusted returns the authorities for certificates of the streaming server; nil for those of this
// host.
func (svc *service) trusted() (*x509.CertPool, error) {
	if svc.streamCA == "" {
		return nil, nil
	}
	b, err := os.ReadFile(svc.streamCA)
	if err != nil {
		return nil, fmt.Errorf("read --stream-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("--stream-ca %s has no certificate in PEM", svc.streamCA)
	}
	return pool, nil
}

// session is a person's connection with a process in a container.
type session struct {
	in       io.Reader // nil: no input
	out, err io.Writer // nil: not wanted
	terminal *terminal // nil: the process has no terminal
}

// errLost means that a connection ended before the process did.
var errLost = errors.New("the connection was lost before the process ended")

// run passes on everything in both directions until the process has ended, and returns its error:
// an exitError if its exit code is not 0. The goroutine that reads the input may stay blocked in
// that; the process of this command is about to end.
func (s *session) run(ctx context.Context, conn httpstream.Connection) error {
	var output sync.WaitGroup
	defer output.Wait()
	defer conn.Close() // ends the copies on every way out
	open := func(kind string) (httpstream.Stream, error) {
		return openStream(ctx, conn, http.Header{http.CanonicalHeaderKey(remotecommand.StreamType): {kind}})
	}
	status, err := open(remotecommand.StreamTypeError)
	if err != nil {
		return err
	}
	_ = status.Close() // nothing is sent on it
	var stdin httpstream.Stream
	if s.in != nil {
		if stdin, err = open(remotecommand.StreamTypeStdin); err != nil {
			return err
		}
	}
	for _, o := range []struct {
		kind string
		to   io.Writer
	}{{remotecommand.StreamTypeStdout, s.out}, {remotecommand.StreamTypeStderr, s.err}} {
		if o.to == nil {
			continue
		}
		from, err := open(o.kind)
		if err != nil {
			return err
		}
		_ = from.Close()
		output.Go(func() {
			if _, err := io.Copy(o.to, from); err != nil {
				_ = conn.Close() // our output is not read any more
			}
		})
	}
	if s.terminal != nil {
		sizes, err := open(remotecommand.StreamTypeResize)
		if err != nil {
			return err
		}
		defer s.terminal.follow(func(width, height int) {
			_ = json.NewEncoder(sizes).Encode(remotecommand.TerminalSize{Width: uint16(width), Height: uint16(height)})
		})()
	}
	detached := make(chan struct{})
	if stdin != nil { // only now: the server waits for all streams first
		go func() {
			_, err := io.Copy(stdin, s.in)
			var escaped mobyterm.EscapeError
			if errors.As(err, &escaped) {
				close(detached)
				_ = conn.Close()
			}
			_ = stdin.Close()
		}()
	}
	said, err := io.ReadAll(io.LimitReader(status, 1<<20))
	output.Wait()
	select {
	case <-detached:
		return errDetached
	default:
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil || len(said) == 0:
		return errLost
	}
	return outcome(said)
}

// outcome converts the server's report of the end of a process.
func outcome(said []byte) error {
	var st metav1.Status
	if err := json.Unmarshal(said, &st); err != nil {
		return errors.New(strings.TrimSpace(string(said)))
	}
	if st.Status == metav1.StatusSuccess {
		return nil
	}
	if st.Reason == remotecommand.NonZeroExitCodeReason && st.Details != nil {
		for _, c := range st.Details.Causes {
			if code, err := strconv.Atoi(c.Message); err == nil && c.Type == remotecommand.ExitCodeCauseType {
				return exitError{code: code}
			}
		}
	}
	// berth puts the first before an error, and services that use cri-streaming put both.
	text := strings.TrimPrefix(st.Message, "Internal error occurred: ")
	return errors.New(strings.TrimPrefix(text, "error executing command in container: "))
}
