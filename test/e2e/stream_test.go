// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/client"
	"berth/test/node"
)

// The channels of a WebSocket, as Kubernetes uses them.
const (
	stdinChannel = iota
	stdoutChannel
	stderrChannel
	errorChannel
	resizeChannel
)

// socket is a WebSocket client of exec or attach.
type socket struct {
	*websocket.Conn
	vanish func() error // closes the connection without a word
	mu     sync.Mutex
	got    [5]bytes.Buffer
	end    chan struct{} // closed when the server has hung up
}

func dialSocket(t *testing.T, url string) *socket {
	t.Helper()
	conn, tcp := client.WebSocket(t, url)
	// Otherwise the kernel goes on sending what the server does not take, before it sends the end.
	if err := tcp.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	s := &socket{Conn: conn, vanish: tcp.Close, end: make(chan struct{})}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		defer close(s.end)
		for {
			var b []byte
			if err := websocket.Message.Receive(conn, &b); err != nil || len(b) == 0 {
				return
			}
			s.mu.Lock()
			if s.got[b[0]].Len() < 1<<20 { // what comes without an end is only read
				s.got[b[0]].Write(b[1:])
			}
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *socket) send(t *testing.T, channel byte, text string) {
	t.Helper()
	if err := websocket.Message.Send(s.Conn, append([]byte{channel}, text...)); err != nil {
		t.Fatal(err)
	}
}

func (s *socket) text(channel int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[channel].String()
}

// code is the exit code that the server has reported.
func (s *socket) code(t *testing.T, n *node.Node) string {
	t.Helper()
	n.Until("the server hangs up", func() bool {
		select {
		case <-s.end:
			return true
		default:
			return false
		}
	})
	var st struct {
		Status  string
		Message string
		Details struct{ Causes []struct{ Message string } }
	}
	if err := json.Unmarshal([]byte(s.text(errorChannel)), &st); err != nil {
		t.Fatalf("%v in %q", err, s.text(errorChannel))
	}
	if st.Status == "Success" {
		return "0"
	}
	if len(st.Details.Causes) == 0 {
		return st.Message
	}
	return st.Details.Causes[0].Message
}

func execURL(t *testing.T, n *node.Node, req *runtimeapi.ExecRequest) string {
	t.Helper()
	resp, err := n.Exec(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetUrl()
}

func TestExecStreamsOverAWebSocket(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("sleep 1000")
	url := execURL(t, n, &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         []string{"sh", "-c", "read a; echo got $a; echo err >&2; exit 42"},
		Stdin:       true,
		Stdout:      true,
		Stderr:      true,
	})
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("it is served at %s", url)
	}
	s := dialSocket(t, url)
	s.send(t, stdinChannel, "hello\n")
	if code := s.code(t, n); code != "42" || s.text(stdoutChannel) != "got hello\n" || s.text(stderrChannel) != "err\n" {
		t.Errorf("got code %s, %q and %q", code, s.text(stdoutChannel), s.text(stderrChannel))
	}
	nothingLeft(n)
	// The URL is good for one request, and no other is good at all.
	server, _, _ := strings.Cut(url, "/exec")
	for _, u := range []string{url, url[:len(url)-1] + "~", server + "/exec/"} {
		resp, err := http.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: got %s", u, resp.Status)
		}
	}
}

func TestExecHasATerminalThatFollowsTheClients(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("sleep 1000")
	s := dialSocket(t, execURL(t, n, &runtimeapi.ExecRequest{
		ContainerId: id,
		Cmd:         []string{"sh"},
		Tty:         true,
		Stdin:       true,
		Stdout:      true,
	}))
	s.send(t, resizeChannel, `{"Width":123,"Height":45}`)
	n.Until("the terminal has the client's size", func() bool {
		s.send(t, stdinChannel, "stty size\n")
		return strings.Contains(s.text(stdoutChannel), "45 123")
	})
	s.send(t, stdinChannel, "exit 7\n")
	if code := s.code(t, n); code != "7" {
		t.Errorf("got %s", code)
	}
	nothingLeft(n)
}

// PROPERTIES 6 and 12: whatever a client does, nothing is left of it.
func TestAClientThatVanishesLeavesNothing(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("sleep 1000")
	files := func() int {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Berth.Pid()))
		return len(entries)
	}
	before := files()
	scripts := []string{"exec sleep " + unique(t, 0), "yes " + unique(t, 1), "cat; true " + unique(t, 2)}
	for i, script := range scripts {
		s := dialSocket(t, execURL(t, n, &runtimeapi.ExecRequest{
			ContainerId: id,
			Cmd:         []string{"sh", "-c", script},
			Stdin:       true,
			Stdout:      true,
		}))
		if i == 0 { // it does not read its input, which the client fills
			go func() {
				for err := error(nil); err == nil; {
					err = websocket.Message.Send(s.Conn, make([]byte, 4096))
				}
			}()
		}
		n.Until("the command runs", func() bool { return mentioned(unique(t, i)) })
		_ = s.vanish() // Close would wait for the output that nobody reads
		nothingLeft(n)
	}
	for i, script := range scripts {
		if mentioned(unique(t, i)) {
			t.Errorf("%q still runs", script)
		}
	}
	n.Until("the descriptors are closed", func() bool { return files() <= before+2 })
}

func TestAttachShowsTheOutputAndPassesTheInputOn(t *testing.T) {
	t.Parallel()
	for name, terminal := range map[string]bool{"with a terminal": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			n := node.Start(t, node.Options{})
			cfg := n.PodConfig()
			pod := n.Pod(cfg)
			c := node.ContainerConfig("c", "sh", "-c", "while read a; do echo got $a; done; echo bye")
			c.Stdin, c.StdinOnce, c.Tty = true, !terminal, terminal
			id := n.Run(pod, cfg, c)
			resp, err := n.Attach(t.Context(), &runtimeapi.AttachRequest{
				ContainerId: id,
				Stdin:       true,
				Stdout:      true,
				Stderr:      !terminal,
				Tty:         terminal,
			})
			if err != nil {
				t.Fatal(err)
			}
			s := dialSocket(t, resp.GetUrl())
			n.Until("the client sees what the container writes", func() bool {
				s.send(t, stdinChannel, "hello\n")
				return strings.Contains(s.text(stdoutChannel), "got hello")
			})
			if terminal {
				s.send(t, stdinChannel, "\x04") // the end of the input, as a person types it
			} else {
				_ = s.Close() // stdin_once
			}
			node.ExpectExit(t, n.Ended(id), 0, "Completed")
			if log := n.Log(id); !strings.Contains(log, "got hello") || !strings.Contains(log, "bye") {
				t.Errorf("the log is %q", log)
			}
			if terminal {
				if code := s.code(t, n); code != "0" || !strings.Contains(s.text(stdoutChannel), "bye") {
					t.Errorf("got %s and %q", code, s.text(stdoutChannel))
				}
			}
		})
	}
}

func TestPortForwardReachesThePodsLoopback(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	for i, address := range []string{"127.0.0.1:8004", "[::1]:8006"} {
		script := "mkdir /tmp/w && echo -n hello " + address + " >/tmp/w/f && exec httpd -f -p " + address + " -h /tmp/w"
		n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("c", i), "sh", "-c", script))
	}
	resp, err := n.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	conn := client.PortForward(t, resp.GetUrl())
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			port := []string{"8004", "8006"}[i%2]
			want := "hello " + []string{"127.0.0.1:8004", "[::1]:8006"}[i%2]
			for end := time.Now().Add(10 * time.Second); ; { // until the server in the pod listens
				got, refused := client.Talk(t, conn, port, fmt.Sprint(i, "-", time.Now().UnixNano()), "GET /f HTTP/1.0\r\n\r\n")
				if strings.HasSuffix(got, want) {
					return
				}
				if refused == "" || time.Now().After(end) {
					t.Errorf("port %s: got %q %q", port, got, refused)
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	if _, refused := client.Talk(t, conn, "9", "closed", ""); !strings.Contains(refused, "refused") {
		t.Errorf("a closed port: got %q", refused)
	}
}

// mentioned reports whether a process on the node has the text in its arguments.
func mentioned(text string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
			return true
		}
	}
	return false
}

// PROPERTIES 4: the client of a container's input is gone with a berth that is killed. The
// container reads the end of its input (stdin_once), and nobody can write into nothing afterwards.
func TestTheInputEndsWithItsClientAlsoIfBerthIsKilled(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	c := node.ContainerConfig("c", "sh", "-c", "while read a; do echo got $a; done; echo bye; trap 'exit 7' TERM; while :; do sleep 0.1; done")
	c.Stdin, c.StdinOnce = true, true
	id := n.Run(pod, cfg, c)
	attach := func() *socket {
		resp, err := n.Attach(t.Context(), &runtimeapi.AttachRequest{
			ContainerId: id,
			Stdin:       true,
			Stdout:      true,
		})
		if err != nil {
			t.Fatal(err)
		}
		return dialSocket(t, resp.GetUrl())
	}
	s := attach()
	s.send(t, stdinChannel, "hello\n")
	n.Until("the container reads what the client writes", func() bool { return strings.Contains(n.Log(id), "got hello") })
	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	n.Until("the container reads the end of its input", func() bool { return strings.Contains(n.Log(id), "bye") })
	if code := attach().code(t, n); code == "0" {
		t.Error("another client may write to the input")
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(id), 7, "Error")
}

// PROPERTIES 60: a client that reads nothing until the call has ended, and then sends pings, gets
// each byte and the code. berth closed the connection behind the last word, and the kernel answered
// a ping with a reset. It is so as well where berth has stopped meanwhile: then the kernel alone
// delivers the rest.
func TestASlowReaderGetsItsEnd(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	_, id := n.Sh("sleep 1000")
	const size = 300_000
	for i, stops := range []bool{false, true} {
		conn, tcp := client.WebSocket(t, execURL(t, n, &runtimeapi.ExecRequest{
			ContainerId: id,
			Cmd:         []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; exit 3", size)},
			Stdout:      true,
		}))
		if err := tcp.SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		n.Until("the call has ended", func() bool { return strings.Count(n.Berth.Output(), "access ended") > i })
		if stops {
			n.Berth.Kill(syscall.SIGTERM)
		}
		for range 3 {
			if _, err := tcp.Write([]byte{0x89, 0x80, 0, 0, 0, 0}); err != nil {
				t.Error(err)
			}
		}
		var got [5]bytes.Buffer
		for {
			var b []byte
			if err := websocket.Message.Receive(conn, &b); err != nil {
				break
			}
			if len(b) > 0 {
				got[b[0]].Write(b[1:])
			}
		}
		if status := got[errorChannel].String(); got[stdoutChannel].Len() != size || !strings.Contains(status, `"3"`) {
			t.Errorf("stops %t: got %d of %d bytes, and the status %q", stops, got[stdoutChannel].Len(), size, status)
		}
		_ = conn.Close()
	}
	n.StartBerth()
}
