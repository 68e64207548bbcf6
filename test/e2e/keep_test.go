// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"

	"berth/test/client"
	"berth/test/node"
)

// keeping is a node whose streams outlive berth, with a container to talk with.
type keeping struct {
	*node.Node
	t       *testing.T
	pod, id string
	audit   string
}

func startKeeping(t *testing.T, external bool) *keeping {
	k := &keeping{t: t, audit: filepath.Join(node.TempDir(t), "audit.log")}
	k.Node = node.Start(t, node.Options{External: external, Args: []string{
		"--set", "streams.keep=true",
		"--set", "audit.file='" + k.audit + "'",
	}})
	k.pod, k.id = k.Sh("nc -ll -p 8080 -e cat & exec sleep 1000")
	k.Until("the container listens", func() bool {
		r, err := k.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: k.id, Cmd: []string{"cat", "/proc/net/tcp", "/proc/net/tcp6"}})
		return err == nil && strings.Contains(string(r.GetStdout()), fmt.Sprintf(":%04X ", 8080))
	})
	return k
}

// spdyCall is an exec over SPDY, whose output is kept.
type spdyCall struct {
	stdin  io.Writer
	mu     sync.Mutex
	out    bytes.Buffer
	status chan string
}

func (k *keeping) overSPDY(req *runtimeapi.ExecRequest) *spdyCall {
	k.t.Helper()
	conn := client.SPDY(k.t, execURL(k.t, k.Node, req), "v4.channel.k8s.io")
	open := func(kind string) httpstream.Stream {
		s, err := conn.CreateStream(http.Header{"Streamtype": {kind}})
		if err != nil {
			k.t.Fatal(err)
		}
		return s
	}
	c := &spdyCall{status: make(chan string, 1)}
	problem := open("error")
	if req.GetStdin() {
		c.stdin = open("stdin")
	}
	stdout := open("stdout")
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := stdout.Read(buf)
			c.mu.Lock()
			c.out.Write(buf[:n])
			c.mu.Unlock()
			if err != nil {
				break
			}
		}
		b, _ := io.ReadAll(problem)
		c.status <- string(b)
	}()
	return c
}

func (c *spdyCall) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// forward opens a connection to the port on which the container echoes.
func (k *keeping) forward(conn httpstream.Connection, request string) *bufio.ReadWriter {
	k.t.Helper()
	headers := func(kind string) http.Header {
		return http.Header{"Streamtype": {kind}, "Port": {"8080"}, "Requestid": {request}}
	}
	problem, err := conn.CreateStream(headers("error"))
	if err != nil {
		k.t.Fatal(err)
	}
	_ = problem.Close()
	data, err := conn.CreateStream(headers("data"))
	if err != nil {
		k.t.Fatal(err)
	}
	return bufio.NewReadWriter(bufio.NewReader(data), bufio.NewWriter(data))
}

func (k *keeping) echoes(c *bufio.ReadWriter, text string) {
	k.t.Helper()
	_, _ = c.WriteString(text + "\n")
	if err := c.Flush(); err != nil {
		k.t.Fatal(err)
	}
	if line, err := c.ReadString('\n'); line != text+"\n" {
		k.t.Fatalf("a connection that is forwarded answers %q to %q: %v", line, text, err)
	}
}

// restart kills berth or stops it, and starts the next one.
func (k *keeping) restart(i int) {
	k.t.Helper()
	k.Berth.Kill([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[i%2])
	k.StartBerth()
}

// nothingKept waits until no stream is kept.
func (k *keeping) nothingKept() {
	k.t.Helper()
	k.Until("no stream is kept", func() bool {
		left, err := filepath.Glob(k.Dir + "/run/streams/*/*/stream")
		return err == nil && len(left) == 0
	})
}

// restarts is how often a test restarts berth: BERTH_RESTARTS, or usual.
func restarts(t *testing.T, usual int) int {
	text := os.Getenv("BERTH_RESTARTS")
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("BERTH_RESTARTS=%q is not a number", text)
	}
	return n
}

// PROPERTIES 47: 20 streams of every kind outlive restarts and kills of berth, no byte of theirs is
// lost, and their codes are right. All of them are on record, with their ends.
func TestStreamsOutliveBerth(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		k := startKeeping(t, external)
		echo := "while read a; do [ $a = end ] && exit 7; echo got $a; done"
		var sockets []*socket
		for range 6 {
			sockets = append(sockets, dialSocket(t, execURL(t, k.Node, &runtimeapi.ExecRequest{
				ContainerId: k.id,
				Cmd:         []string{"sh", "-c", echo},
				Stdin:       true,
				Stdout:      true,
				Stderr:      true,
			})))
		}
		var calls, counters []*spdyCall
		for i := range 4 {
			calls = append(calls, k.overSPDY(&runtimeapi.ExecRequest{ContainerId: k.id, Cmd: []string{"sh", "-c", echo}, Stdin: true, Stdout: true}))
			count := fmt.Sprintf("i=0; while [ ! -e /stop ]; do i=$((i+1)); echo $i; usleep 3000; done; echo $i >/last%d; exit 9", i)
			counters = append(counters, k.overSPDY(&runtimeapi.ExecRequest{ContainerId: k.id, Cmd: []string{"sh", "-c", count}, Stdout: true}))
		}
		terminal := dialSocket(t, execURL(t, k.Node, &runtimeapi.ExecRequest{
			ContainerId: k.id,
			Cmd:         []string{"sh"},
			Tty:         true,
			Stdin:       true,
			Stdout:      true,
		}))
		var conns []httpstream.Connection
		var forwards []*bufio.ReadWriter
		for range 5 {
			resp, err := k.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: k.pod})
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, client.PortForward(t, resp.GetUrl()))
			forwards = append(forwards, k.forward(conns[len(conns)-1], "first"))
		}
		talk := func(round int) {
			t.Helper()
			for i, s := range sockets {
				s.send(t, stdinChannel, fmt.Sprintf("ws%d\n", round))
				k.Until("a command answers", func() bool { return strings.Contains(s.text(stdoutChannel), fmt.Sprintf("got ws%d\n", round)) })
				if got := s.text(errorChannel); got != "" {
					t.Fatalf("stream %d has ended: %s", i, got)
				}
			}
			for _, c := range calls {
				if _, err := fmt.Fprintf(c.stdin, "spdy%d\n", round); err != nil {
					t.Fatal(err)
				}
				k.Until("a command answers", func() bool { return strings.Contains(c.text(), fmt.Sprintf("got spdy%d\n", round)) })
			}
			terminal.send(t, resizeChannel, fmt.Sprintf(`{"Width":%d,"Height":45}`, 100+round))
			k.Until("the terminal has the client's size", func() bool {
				terminal.send(t, stdinChannel, "stty size\n")
				return strings.Contains(terminal.text(stdoutChannel), fmt.Sprintf("45 %d", 100+round))
			})
			for _, f := range forwards {
				k.echoes(f, fmt.Sprintf("forward%d", round))
			}
			k.echoes(k.forward(conns[round%len(conns)], fmt.Sprintf("more%d", round)), "more")
		}
		talk(0)
		for _, c := range counters { // what does not run yet when berth is killed does not run at all
			k.Until("a command counts", func() bool { return c.text() != "" })
		}
		if kept, err := filepath.Glob(k.Dir + "/run/streams/*/*/stream"); len(kept) != 20 {
			t.Fatalf("%d of 20 streams are kept, %v: the process that keeps them may have been slow", len(kept), err)
		}
		n := restarts(t, 4)
		for i := range n {
			k.restart(i)
			talk(i + 1)
		}
		if _, err := k.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: k.id, Cmd: []string{"touch", "/stop"}}); err != nil {
			t.Fatal(err)
		}
		for i, c := range counters {
			status := <-c.status
			r, err := k.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: k.id, Cmd: []string{"cat", fmt.Sprintf("/last%d", i)}})
			if err != nil {
				t.Fatal(err)
			}
			last, _ := strconv.Atoi(strings.TrimSpace(string(r.GetStdout())))
			var want strings.Builder
			for j := range last {
				fmt.Fprintln(&want, j+1)
			}
			if got := c.text(); got != want.String() || last == 0 {
				t.Errorf("of the lines to %d, %d bytes of %d are there", last, len(got), want.Len())
			}
			if !strings.Contains(status, `"message":"9"`) {
				t.Errorf("a command that ends with 9 is reported as %s", status)
			}
		}
		for _, s := range sockets {
			s.send(t, stdinChannel, "end\n")
			if code := s.code(t, k.Node); code != "7" {
				t.Errorf("a command that ends with 7 is reported as %s", code)
			}
		}
		for _, c := range calls {
			if _, err := io.WriteString(c.stdin, "end\n"); err != nil {
				t.Fatal(err)
			}
			if status := <-c.status; !strings.Contains(status, `"message":"7"`) {
				t.Errorf("a command that ends with 7 is reported as %s", status)
			}
		}
		terminal.send(t, stdinChannel, "exit 5\n")
		if code := terminal.code(t, k.Node); code != "5" {
			t.Errorf("the terminal's shell ends with 5, and %s is reported", code)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		k.nothingKept()
		k.recorded(map[string]int{"exec 7": 10, "exec 9": 4, "exec 5": 1, "port-forward 0": 6 + n})
	})
}

// PROPERTIES 29 and 47: berth is killed while commands start. Each of them goes on and has its code, or its
// client hears that its stream is over; nothing is left of it in either case, and its end is on record.
func TestAStartThatIsCutOffEndsOrGoesOn(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		k := startKeeping(t, external)
		var calls []*spdyCall
		for i := range 12 {
			calls = append(calls, k.overSPDY(&runtimeapi.ExecRequest{
				ContainerId: k.id,
				Cmd:         []string{"sh", "-c", "echo here; read a; exit 7; : " + unique(t, i)},
				Stdin:       true,
				Stdout:      true,
			}))
		}
		k.Until("a command runs", func() bool { return calls[0].text() != "" })
		k.restart(0)
		went := 0
		for _, c := range calls {
			over := ""
			k.Until("a command runs, or its stream is over", func() bool {
				select {
				case s := <-c.status:
					over = cmp.Or(s, "cut")
				default:
				}
				return over != "" || c.text() != ""
			})
			if over == "" {
				_, _ = io.WriteString(c.stdin, "end\n")
				over = <-c.status
			}
			switch {
			case strings.Contains(over, `"message":"7"`):
				went++
			case over == "cut", strings.Contains(over, "berth was stopped or restarted"):
			case strings.Contains(over, "cannot be recorded"): // the disk has not answered in time
			default:
				t.Errorf("a client is told %s", over)
			}
		}
		if went == 0 {
			t.Error("the command that ran when berth was killed has not gone on")
		}
		k.nothingKept()
		for i := range calls {
			k.Until("the command has ended", func() bool { return !mentioned(unique(t, i)) })
		}
		k.recorded(nil)
	})
}

// recorded waits until all accesses have ended on record, as many as wanted, with their codes, and fails the test
// for one that has ended in another way, or twice. Without a wish they may have ended in any way. What was cut
// off as it began may have a last line alone.
func (k *keeping) recorded(want map[string]int) {
	k.t.Helper()
	var ended map[string]int
	k.Until("all accesses have ended on record", func() bool {
		b, err := os.ReadFile(k.audit)
		if err != nil {
			k.t.Fatal(err)
		}
		ended = map[string]int{}
		open, over := map[string]bool{}, map[string]bool{}
		for line := range bytes.Lines(b) {
			var r struct {
				What, Access, Session string
				Code                  int
				Err                   string `json:"error"`
			}
			if !bytes.HasSuffix(line, []byte("\n")) {
				return false // it is being written
			}
			if err := json.Unmarshal(line, &r); err != nil {
				k.t.Fatalf("%s: %v", line, err)
			}
			if r.Access == "exec-sync" {
				continue
			}
			switch {
			case r.What == "began":
				open[r.Session] = true
			case r.What == "ended" && over[r.Session]:
				k.t.Fatalf("an access has ended twice: %s", b)
			case r.What == "ended":
				over[r.Session] = true
				ended[fmt.Sprintf("%s %d%s", r.Access, r.Code, r.Err)]++
			}
		}
		for session := range open {
			if !over[session] {
				return false
			}
		}
		return true
	})
	if want != nil && fmt.Sprint(ended) != fmt.Sprint(want) {
		k.t.Errorf("%v have ended, not %v", ended, want)
	}
}

// PROPERTIES 29 and 47: while berth is away, the process of a client that vanishes is ended, a client
// whose container ends is told so, and nothing is left of either.
func TestKeptStreamsEndWhileBerthIsAway(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		k := startKeeping(t, external)
		_, other := k.Sh("sleep 1000")
		exec := func(id string, i int) *socket {
			s := dialSocket(t, execURL(t, k.Node, &runtimeapi.ExecRequest{
				ContainerId: id,
				Cmd:         []string{"sh", "-c", "echo here; exec sleep " + unique(t, i)},
				Stdout:      true,
				Stderr:      true,
			}))
			k.Until("the command runs", func() bool { return s.text(stdoutChannel) == "here\n" })
			return s
		}
		vanishes, loses := exec(k.id, 0), exec(other, 1)
		init := k.Pid(other)
		k.Berth.Kill(syscall.SIGKILL)
		_ = vanishes.vanish()
		k.Until("the process of a client that is gone has ended", func() bool { return !mentioned(unique(t, 0)) })
		if err := syscall.Kill(init, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if code := loses.code(t, k.Node); code != "137" {
			t.Errorf("a command whose container was killed is reported as %s", code)
		}
		k.Until("no process keeps streams", func() bool { return len(k.holders()) == 0 })
		k.StartBerth()
		node.ExpectExit(t, k.Ended(other), 137, "Error")
		k.nothingKept()
	})
}

// holders are the processes that keep streams of the node.
func (k *keeping) holders() (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte("hold-streams\x00"+k.Dir+"/")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// PROPERTIES 29 and 47: what the process has left that kept streams is ended by berth, also by one that
// was not there when that process was killed.
func TestWhatKeptStreamsIsKilled(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]bool{"while berth is there": false, "while berth is away": true} {
		t.Run(name, func(t *testing.T) {
			k := startKeeping(t, false)
			s := dialSocket(t, execURL(t, k.Node, &runtimeapi.ExecRequest{
				ContainerId: k.id,
				Cmd:         []string{"sh", "-c", "echo here; exec sleep " + unique(t, 0)},
				Stdout:      true,
				Stderr:      true,
			}))
			k.Until("the command runs", func() bool { return s.text(stdoutChannel) == "here\n" })
			pids := k.holders()
			if len(pids) != 1 {
				t.Fatalf("%d processes keep streams", len(pids))
			}
			if away {
				k.Berth.Kill(syscall.SIGKILL)
			}
			if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if away {
				k.StartBerth()
			}
			k.Until("the command has ended", func() bool { return !mentioned(unique(t, 0)) })
			k.nothingKept()
			k.recorded(map[string]int{"exec 0the process that held the stream was killed": 1})
		})
	}
}
