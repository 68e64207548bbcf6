// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"berth/test/client"
	"berth/test/node"
)

// A stream that a client opens at the kubelet, as kubectl does, is passed on to berth.
func TestStreamsThroughAKubelet(t *testing.T) {
	t.Parallel()
	k := start(t, node.Options{}, false)
	k.add("web", "web")
	k.until("web", "ready", pod.ready)
	t.Run("exec", func(t *testing.T) {
		s := k.exec(t, url.Values{"input": {"1"}, "output": {"1"}, "error": {"1"}}, "sh", "-c", "read a; echo got $a; echo err >&2; exit 42")
		s.send(t, 0, "hello\n")
		if got := s.all(t); got[1] != "got hello\n" || got[2] != "err\n" || code(t, got[3]) != "42" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("exec with a terminal", func(t *testing.T) {
		// The size comes in its own time, beside the input.
		const script = "read a; until stty size 2>&1 | grep -q '31 91'; do sleep 0.1; done; stty size"
		s := k.exec(t, url.Values{"input": {"1"}, "output": {"1"}, "tty": {"1"}}, "sh", "-c", script)
		s.send(t, 4, `{"Width": 91, "Height": 31}`)
		s.send(t, 0, "go\n")
		if got := s.all(t); got[1] != "go\r\n31 91\r\n" || code(t, got[3]) != "0" {
			t.Errorf("got %q", got)
		}
	})
	// PROPERTIES 29: also where the client is behind a kubelet.
	t.Run("exec whose client vanishes", func(t *testing.T) {
		s := k.exec(t, url.Values{"input": {"1"}, "output": {"1"}}, "sh", "-c", "echo it runs; cat; sleep 918273")
		s.until(t, 1, "it runs\n")
		if !runs("sleep 918273") {
			t.Error("the process of the exec is not there")
		}
		if err := s.tcp.Close(); err != nil {
			t.Fatal(err)
		}
		if !k.eventually(func() bool { return !runs("sleep 918273") }) {
			t.Error("the process of the exec goes on without its client")
		}
	})
	const question, answer = "GET /index.html HTTP/1.0\r\n\r\n", "made by init\n"
	t.Run("port-forward over SPDY", func(t *testing.T) {
		conn := client.PortForward(t, k.url("https", "/portForward/default/web-node"))
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if got, refused := client.Talk(t, conn, "8080", fmt.Sprint(i), question); !strings.HasSuffix(got, answer) || refused != "" {
					t.Errorf("got %q %q", got, refused)
				}
			})
		}
		wg.Wait()
		if _, refused := client.Talk(t, conn, "9", "closed", ""); !strings.Contains(refused, "refused") {
			t.Errorf("a closed port: got %q", refused)
		}
	})
	t.Run("port-forward over a WebSocket", func(t *testing.T) {
		s := dial(t, k.url("https", "/portForward/default/web-node?port=8080"))
		s.send(t, 0, question)
		s.until(t, 0, answer)
		_ = s.conn.Close()
		port := string(binary.LittleEndian.AppendUint16(nil, 8080)) // comes first in each direction
		if got := s.all(t); !strings.HasPrefix(got[0], port+"HTTP/1.0 200") && !strings.HasPrefix(got[0], port+"HTTP/1.1 200") || got[1] != port {
			t.Errorf("got %q", got)
		}
	})
}

// socket is a client of a stream over a WebSocket.
type socket struct {
	conn  *websocket.Conn
	tcp   *net.TCPConn
	ended chan struct{} // closed when the server has hung up

	mu  sync.Mutex
	got [5]string // by channel
}

func dial(t *testing.T, at string) *socket {
	t.Helper()
	s := &socket{ended: make(chan struct{})}
	s.conn, s.tcp = client.WebSocket(t, at)
	t.Cleanup(func() { _ = s.conn.Close() })
	go func() {
		defer close(s.ended)
		for {
			var b []byte
			if err := websocket.Message.Receive(s.conn, &b); err != nil || len(b) == 0 || int(b[0]) >= len(s.got) {
				return
			}
			s.mu.Lock()
			s.got[b[0]] += string(b[1:])
			s.mu.Unlock()
		}
	}()
	return s
}

func (k *kubelet) url(scheme, path string) string {
	return fmt.Sprintf("%s://127.0.0.1:%d%s", scheme, k.port, path)
}

// exec executes a command in the pod web.
func (k *kubelet) exec(t *testing.T, query url.Values, command ...string) *socket {
	t.Helper()
	query["command"] = command
	return dial(t, k.url("https", "/exec/default/web-node/web?"+query.Encode()))
}

func (s *socket) send(t *testing.T, channel byte, text string) {
	t.Helper()
	if err := websocket.Message.Send(s.conn, append([]byte{channel}, text...)); err != nil {
		t.Fatal(err)
	}
}

// until waits until what came on a channel ends with a text.
func (s *socket) until(t *testing.T, channel int, text string) {
	t.Helper()
	for range 3000 {
		s.mu.Lock()
		got := s.got[channel]
		s.mu.Unlock()
		if strings.HasSuffix(got, text) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("channel %d does not end with %q", channel, text)
}

// all waits until the server has hung up, and returns what came, by channel.
func (s *socket) all(t *testing.T) [5]string {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		t.Fatal("the server does not hang up")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

// code is the exit code in a status that the server has sent.
func code(t *testing.T, status string) string {
	t.Helper()
	var st struct {
		Status  string
		Details struct{ Causes []struct{ Message string } }
	}
	if err := json.Unmarshal([]byte(status), &st); err != nil {
		t.Errorf("%v in %q", err, status)
	}
	switch {
	case st.Status == "Success":
		return "0"
	case len(st.Details.Causes) > 0:
		return st.Details.Causes[0].Message
	}
	return status
}

// runs reports whether a process on the node has the text in its arguments.
func runs(text string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
			return true
		}
	}
	return false
}
