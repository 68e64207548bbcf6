// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// expectExec runs a command, as somebody who wants to look into a container does.
func expectExec(t *testing.T, w *world, s *Server) {
	t.Helper()
	w.mu.Lock()
	w.program = func(p *fakeProcess) uint32 {
		if p.stdin == nil { // a probe
			return untilKilled(p)
		}
		return echo(p)
	}
	w.mu.Unlock()
	resp, err := s.Exec(t.Context(), execRequest())
	if err != nil {
		t.Fatal(err)
	}
	conn := dialSocket(t, resp.GetUrl())
	defer conn.Close()
	if err := websocket.Message.Send(conn, []byte("\x00hello\n")); err != nil {
		t.Fatal(err)
	}
	if got := receive(conn); got[1] != "hello\n" {
		t.Errorf("got %q", got)
	}
}

func expectExhausted(t *testing.T, err error) {
	t.Helper()
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "pod p1 has ") {
		t.Errorf("got %v, which is not an error that names the pod", err)
	}
}

// PROPERTIES 38: 1,024 port-forwards on which nothing came or went ended exec and attach of the
// whole node, for four hours.
func TestForwardsDoNotTakeThePlaceOfExec(t *testing.T) {
	w := newWorld(t)
	w.podSays(func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	s := serve(t, w, nil)
	for range 1024 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // it waits for room no longer
		resp, err := s.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: "p1", Port: []int32{1}})
		cancel()
		if err != nil {
			expectExhausted(t, err)
			break
		}
		conn := dialSocket(t, resp.GetUrl())
		t.Cleanup(func() { _ = conn.Close() })
	}
	expectExec(t, w, s)
}

// PROPERTIES 38: the URLs for one pod kept every other from getting one, for a minute.
func TestURLsOfOnePodAreBounded(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w, nil)
	for n := range 1001 {
		if _, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1", Port: []int32{1}}); err != nil {
			expectExhausted(t, err)
			break
		} else if n == 1000 {
			t.Error("one pod has 1001 URLs")
		}
	}
	expectExec(t, w, s)
}

// PROPERTIES 38: 200 clients without a URL held 209 MiB with headers that they did not end. Now
// they are refused by the first line of their request.
func TestAClientWithoutATokenIsRefusedByItsFirstLine(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w, nil)
	s.mu.Lock()
	base := s.mu.base
	s.mu.Unlock()
	for _, line := range []string{
		"GET / HTTP/1.1\r\n",
		"GET " + base.Path + "exec/" + rand.Text() + " HTTP/1.1\r\n",
		"nonsense\n",
		strings.Repeat("x", 4096),
	} {
		conn, err := net.Dial("tcp", base.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%.40q: got %v", line, err)
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%.40q: got %s", line, resp.Status)
		}
	}
	until(t, "the server hangs up", func() bool { return len(s.connections()) == 0 })
}

// PROPERTIES 38: whoever has a URL cannot fill the memory with headers either.
func TestHeadersAreBounded(t *testing.T) {
	w := newWorld(t)
	w.program = echo
	s := serve(t, w, nil)
	u, err := url.Parse(s.execURL(t, execRequest()))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET "+u.Path+" HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 64<<10))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %s", resp.Status)
	}
}

// PROPERTIES 38: a hundred probes that hang, in the containers of one pod, left no process for a
// person who wants to see why; and they took the processes of the node.
func TestProbesOfOnePodDoNotTakeThePlaceOfOthers(t *testing.T) {
	w := newWorld(t)
	w.program = untilKilled
	s := serve(t, w, nil)
	refused := make(chan error, 1024)
	var probes sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	for n := range 1024 {
		id := "c1"
		if n%8 > 0 { // more containers of the same pod
			id = fmt.Sprint("c1-", n%8)
		}
		probes.Go(func() {
			if _, err := w.service.ExecSync(ctx, id, []string{"ls"}, 0); err != nil {
				refused <- err
			}
		})
	}
	until(t, "one pod has its share of processes", func() bool { return len(refused) > 0 })
	expectExhausted(t, <-refused)
	expectExec(t, w, s)
	end()
	probes.Wait()
}

// PROPERTIES 38: a port-forward on which nothing comes or goes makes room for another of its pod,
// and one that is in use does not.
func TestAnIdleForwardMakesRoom(t *testing.T) {
	w := newWorld(t)
	w.podSays(func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	s := serve(t, w, nil)
	share := int(w.service.forwards.Usage().Pod)
	forward := func() (*websocket.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // it waits for room no longer
		defer cancel()
		resp, err := s.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: "p1", Port: []int32{1}})
		if err != nil {
			return nil, err
		}
		return dialSocket(t, resp.GetUrl()), nil
	}
	var conns []*websocket.Conn
	for range share {
		conn, err := forward()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	until(t, "all are there", func() bool { return len(s.forwards()) == share })
	if _, err := forward(); !errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v, though all are in use", err)
	}
	if n := w.service.forwards.Usage().Refused; n != 1 {
		t.Errorf("%d refusals are counted, and one has waited in vain", n)
	}
	for _, o := range s.forwards() {
		o.busy.Add(-2 * int64(idleForward))
	}
	if err := websocket.Message.Send(conns[0], []byte("\x00hello")); err != nil { // it is in use
		t.Fatal(err)
	}
	until(t, "the pod has answered", func() bool {
		var b []byte
		err := websocket.Message.Receive(conns[0], &b)
		return err == nil && string(b) == "\x00hello"
	})
	for range share - 1 {
		conn, err := forward()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if _, err := forward(); !errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v, though all are in use", err)
	}
	for i, conn := range conns[1:] { // the server hangs up
		for {
			var b []byte
			if err := websocket.Message.Receive(conn, &b); err != nil {
				break
			}
			if len(b) > 3 {
				t.Errorf("%d: got %q", i+1, b)
			}
		}
	}
}

// Of 300 connections to a web server through berth port-forward 62 were refused: each one beyond
// the share of its pod, though most of the others ended within a moment.
func TestAPortForwardWaitsForRoom(t *testing.T) {
	w := newWorld(t)
	w.podSays(func(conn net.Conn) { _, _ = io.CopyN(conn, conn, 5) })
	s := serve(t, w, nil)
	share := int(w.service.forwards.Usage().Pod)
	var clients sync.WaitGroup
	defer func() {
		clients.Wait()
		if n := w.service.forwards.Usage().Refused; n != 0 {
			t.Errorf("%d are counted as refused, and all have waited", n)
		}
	}()
	for range 4 * share {
		clients.Go(func() {
			resp, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1", Port: []int32{1}})
			if err != nil {
				t.Error(err)
				return
			}
			conn := dialSocket(t, resp.GetUrl())
			defer conn.Close()
			if err := websocket.Message.Send(conn, []byte("\x00hello")); err != nil {
				t.Error(err)
			}
			var b []byte
			for string(b) != "\x00hello" && err == nil {
				err = websocket.Message.Receive(conn, &b)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// forwards are the port-forwards whose client has come.
func (s *Server) forwards() []*offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*offer
	for o := range s.mu.streams {
		if o.of == s.service.forwards {
			all = append(all, o)
		}
	}
	return all
}

// PROPERTIES 38: a port-forward makes room for one of another pod while its own has more than what
// it has for sure.
func TestThePortForwardsOfManyPodsMakeRoom(t *testing.T) {
	w := newWorld(t)
	s := serve(t, w, nil)
	of := w.service.forwards
	limits := of.Usage().Limits
	old := time.Now().Add(-2 * idleForward).UnixNano()
	var all []*offer
	for n := range limits.Node {
		own := newConn(tcpPair(t), s)
		o := &offer{of: of, pod: fmt.Sprint("busy", n%8), hangUp: func() { _ = own.Close() }}
		if err := of.Take(o.pod, 1); err != nil {
			t.Fatal(err)
		}
		o.busy.Store(old - n%8) // those of the last pod are the oldest
		s.mu.streams[o] = true
		all = append(all, o)
	}
	_ = of.Take("p1", limits.Sure)
	if _, err := s.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1"}); err != nil {
		t.Errorf("got %v, though others are idle", err)
	}
	if n, before := of.Of("busy7"), limits.Node/8; n != before-limits.Sure-1 {
		t.Errorf("the pod with the oldest has %d of %d", n, before)
	}
	if n := of.Usage().Used; n != limits.Node {
		t.Errorf("there are %d", n)
	}
	for _, o := range all {
		s.drop(o)
	}
	of.Give("p1", limits.Sure)
}
