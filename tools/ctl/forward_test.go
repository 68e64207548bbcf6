// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
)

// failing is a listener that nobody connects to.
type failing struct {
	net.Listener
	fail   chan error
	closed chan struct{}
}

func newFailing() *failing {
	return &failing{fail: make(chan error, 1), closed: make(chan struct{}, 10)}
}

func (l *failing) Accept() (net.Conn, error) { return nil, <-l.fail }
func (l *failing) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080} }

func (l *failing) Close() error {
	select {
	case l.fail <- net.ErrClosed:
	default:
	}
	l.closed <- struct{}{}
	return nil
}

// A port whose listener failed was not forwarded any more, and nobody learned of it. The command
// went on for ever, also without any port.
func TestAPortThatCannotAcceptIsReported(t *testing.T) {
	first, second := newFailing(), newFailing()
	said := &lines{}
	f := forwarder{out: &lockedWriter{w: said}, err: &lockedWriter{w: said}}
	done := make(chan error, 1)
	go func() {
		done <- f.serve(t.Context(), []net.Listener{first, second}, []portPair{{remote: 80}, {remote: 443}})
	}()
	first.fail <- errors.New("too many open files")
	said.until(t, "port 80: accept a connection on 127.0.0.1:8080: too many open files; this port is not forwarded any more")
	<-first.closed
	select {
	case err := <-done:
		t.Fatalf("it ended with a port left: %v", err)
	default:
	}
	second.fail <- errors.New("out of memory")
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no port is left: port 443: accept a connection on 127.0.0.1:8080: out of memory") {
		t.Errorf("got %v", err)
	}
}

func TestForwardingEndsInSilenceWhenAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	said := &lines{}
	f := forwarder{out: &lockedWriter{w: said}, err: &lockedWriter{w: said}}
	cancel()
	if err := f.serve(ctx, []net.Listener{newFailing(), newFailing()}, make([]portPair, 2)); err != nil || said.String() != "" {
		t.Errorf("got %v, said %q", err, said.String())
	}
}
