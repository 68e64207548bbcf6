// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"

	testclient "berth/test/client"
)

// liveHeap is how many bytes are in use.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// hold is a program that reads some of its input, says so, and reads nothing more.
func hold(n int64, read chan<- struct{}) func(p *fakeProcess) uint32 {
	return func(p *fakeProcess) uint32 {
		_, _ = io.CopyN(io.Discard, p.stdin, n)
		read <- struct{}{}
		return untilKilled(p)
	}
}

// push sends what begins with head and is much longer, until the server takes no more.
func push(tcp *net.TCPConn, head []byte) {
	_, err := tcp.Write(head)
	for zeroes := make([]byte, 64<<10); err == nil; {
		_, err = tcp.Write(zeroes)
	}
}

// PROPERTIES 38: a message was kept whole before a byte of it was passed on: ten clients with
// messages of 24 MiB, and processes that do not read, held 280 MiB.
func TestAMessageThatIsNotReadCostsABoundedAmount(t *testing.T) {
	const clients, length = 10, 24 << 20
	head := []byte{0x82, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // binary, masked with zeroes; channel 0
	binary.BigEndian.PutUint64(head[2:], length)
	expectBoundedInput(t, clients, func(s *Server) (*net.TCPConn, func()) {
		_, tcp := testclient.WebSocket(t, s.execURL(t, execRequest()))
		return tcp, func() { push(tcp, head) }
	})
}

// PROPERTIES 38: so was a data frame of SPDY.
func TestAFrameThatIsNotReadCostsABoundedAmount(t *testing.T) {
	expectBoundedInput(t, 10, func(s *Server) (*net.TCPConn, func()) {
		conn, tcp := dialSPDY(t, s.execURL(t, execRequest()), "v4.channel.k8s.io")
		open(t, conn, "error")
		stdin := open(t, conn, "stdin")
		open(t, conn, "stdout")
		head := binary.BigEndian.AppendUint32(nil, stdin.Identifier())
		return tcp, func() { push(tcp, binary.BigEndian.AppendUint32(head, 1<<24-1)) }
	})
}

// expectBoundedInput has clients send much more than their processes read.
func expectBoundedInput(t *testing.T, clients int, dial func(s *Server) (tcp *net.TCPConn, send func())) {
	t.Helper()
	w := newWorld(t)
	read := make(chan struct{})
	w.program = hold(1<<20, read)
	s := serve(t, w, nil)
	sent := make(chan struct{})
	var open []*net.TCPConn
	var sends []func()
	for range clients {
		tcp, send := dial(s)
		open, sends = append(open, tcp), append(sends, send)
	}
	before := liveHeap()
	for _, send := range sends {
		go func() {
			defer func() { sent <- struct{}{} }()
			send()
		}()
	}
	for range clients {
		<-read
	}
	if grown := liveHeap() - before; grown > int64(clients)<<19 {
		t.Errorf("%d clients whose input is not read hold %d KiB", clients, grown>>10)
	}
	for _, tcp := range open {
		if err := tcp.SetLinger(0); err != nil { // otherwise the kernel goes on sending
			t.Fatal(err)
		}
		_ = tcp.Close()
	}
	for range clients {
		<-sent
	}
	until(t, "nothing is left", func() bool { return w.left() == 0 && len(s.connections()) == 0 })
}
