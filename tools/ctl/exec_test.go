// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// withInput runs a command that reads its standard input from a pipe, as in a script.
func withInput(endpoint, input string, args ...string) (out, errOut string, err error) {
	var stdout, stderr bytes.Buffer
	cmd := app{patience: defaultPatience}.root()
	cmd.SetArgs(append([]string{"--endpoint", endpoint}, args...))
	cmd.SetIn(strings.NewReader(input))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err = cmd.ExecuteContext(context.Background())
	return stdout.String(), stderr.String(), err
}

func TestExecPassesInputOutputAndCodeOn(t *testing.T) {
	f := services()
	serveStreams(t, f)
	at := serveFake(t, f)
	out, errOut, err := withInput(at, "hello\nerr oh\nexit 42\n", "exec", "-i", "nginx", "prog", "-x")
	if out != "got \"hello\"\n" || errOut != "oh\n" || ExitCode(err) != 42 {
		t.Errorf("got %q, %q and code %d: %v", out, errOut, ExitCode(err), err)
	}
	if err == nil || err.Error() != "" {
		t.Errorf("it says more than the command did: %v", err)
	}
	if out, _, err = withInput(at, "a", "exec", "-i", "nginx", "prog"); out != "end of input after \"a\"\n" || err != nil {
		t.Errorf("the end of the input is not passed on: %q %v", out, err)
	}
	if out, _, err = withInput(at, "a", "exec", "nginx", "prog"); out != "no input\n" || err != nil {
		t.Errorf("without -i: %q %v", out, err)
	}
	if _, _, err = withInput(at, "refuse\n", "exec", "-i", "nginx", "prog"); fmt.Sprint(err) != "exec in container c: no such file" {
		t.Errorf("a command that cannot be run: %v", err)
	}
	_, _, err = withInput(at, "lose\n", "exec", "-i", "nginx", "prog")
	says(t, "a lost connection", fmt.Sprint(err), "lost")
	_, _, err = withInput(at, "", "exec", "-it", "nginx", "prog")
	says(t, "-t without a terminal", fmt.Sprint(err), "not a terminal", "--tty")
}

// The two dashes were taken for the program.
func TestExecTakesTheDashesOfKubectl(t *testing.T) {
	f := services()
	serveStreams(t, f)
	at := serveFake(t, f)
	for _, c := range []struct {
		args []string
		want string // the command
		out  string
	}{
		{[]string{"nginx", "ls", "-l", "--all"}, "[ls -l --all]", "no input\n"},
		{[]string{"nginx", "--", "ls", "-l"}, "[ls -l]", "no input\n"},
		{[]string{"--", "nginx", "ls", "-i"}, "[ls -i]", "no input\n"},
		{[]string{"-i", "nginx", "--", "ls", "--", "-i"}, "[ls -- -i]", "end of input after \"\"\n"},
		{[]string{"nginx", "-i", "--", "ls", "-t"}, "[ls -t]", "end of input after \"\"\n"},
		{[]string{"nginx", "-i", "ls", "-t", "--help"}, "[ls -t --help]", "end of input after \"\"\n"},
		{[]string{"nginx", "--", "--odd"}, "[--odd]", "no input\n"},
		{[]string{"nginx", "grep", "--", "-x"}, "[grep -- -x]", "no input\n"},
	} {
		f.calls = nil
		out, _, err := withInput(at, "", append([]string{"exec"}, c.args...)...)
		if got := strings.Join(f.calls, ""); got != "exec bbb222 "+c.want || out != c.out || err != nil {
			t.Errorf("exec %q: %s, %q: %v", c.args, got, out, err)
		}
	}
	for _, args := range [][]string{{"nginx"}, {"nginx", "--"}, {"nginx", "-i"}, {}, {"nginx", "--none", "--", "x"}} {
		if _, err := run(at, append([]string{"exec"}, args...)...); ExitCode(err) != exitItself {
			t.Errorf("exec %q: code %d, %v", args, ExitCode(err), err)
		}
	}
	if out, err := run(at, "exec", "nginx", "--help"); err != nil || !strings.Contains(out, "Run a command in a container") {
		t.Errorf("--help after the name: %v", err)
	}
}

// The code was 1 whatever it was that failed, and could be the command's.
func TestExitCodesAreThoseOfShells(t *testing.T) {
	const runc = "exec in container c: OCI runtime exec failed: exec failed: unable to start container process: "
	for text, want := range map[string]int{
		runc + `exec: "nope": executable file not found in $PATH`:                                                            127,
		runc + `exec: "/nope": stat /nope: no such file or directory`:                                                        127,
		runc + `exec: "/etc/passwd": permission denied`:                                                                      126,
		runc + `exec: "/etc": is a directory`:                                                                                126,
		runc + "exec /script: exec format error":                                                                             126,
		runc + "exec /script: no such file or directory":                                                                     127,
		runc + `chdir to cwd ("/x") set in config.json failed: no such file or directory`:                                    125,
		"exec in container c: OCI runtime exec failed: executable file `nope` not found in $PATH: No such file or directory": 127,
		"exec in container c: the container does not run":                                                                    125,
		"open /var/lib/berth: permission denied":                                                                             125,
		"exec in container c: open /run/x: no such file or directory":                                                        125,
	} {
		if got := codeOfRefusal(errors.New(text)); got != want {
			t.Errorf("%s: code %d, want %d", text, got, want)
		}
	}
	f := services()
	serveStreams(t, f)
	at := serveFake(t, f)
	for input, want := range map[string]int{"exit 137\n": 137, "exit 1\n": 1, "refuse\n": 125, "absent\n": 127, "lose\n": 125} {
		if _, _, err := withInput(at, input, "exec", "-i", "nginx", "prog"); ExitCode(err) != want {
			t.Errorf("exec of %q: code %d, want %d: %v", input, ExitCode(err), want, err)
		}
	}
	for _, args := range [][]string{{"exec", "none", "x"}, {"attach", "none"}, {"attach"}, {"attach", "--none", "x"}, {"play", "--wait", "/none"}} {
		if _, err := run(at, args...); ExitCode(err) != exitItself {
			t.Errorf("%q: code %d: %v", args, ExitCode(err), err)
		}
	}
	if _, err := run(at, "play", "/none"); ExitCode(err) != 1 {
		t.Errorf("a play that passes no code on: code %d", ExitCode(err))
	}
	f.refuseStart = status.Error(codes.FailedPrecondition, runc+`exec: "nope": executable file not found in $PATH`)
	f.images["b"] = &runtimeapi.Image{}
	if _, problem, code, _ := play(t, f, podYAML, "--wait"); code != 127 {
		t.Errorf("a play whose command is not there: code %d: %s", code, problem)
	}
}

// A large output is not cut off by the end of the process.
func TestExecPassesAllOfALargeInputOn(t *testing.T) {
	f := services()
	serveStreams(t, f)
	at := serveFake(t, f)
	line := strings.Repeat("x", 64<<10)
	out, _, err := withInput(at, strings.Repeat(line+"\n", 64), "exec", "-i", "nginx", "prog")
	if want := strings.Repeat("got \""+line+"\"\n", 64) + "end of input after \"\"\n"; out != want || err != nil {
		t.Errorf("%d of %d bytes: %v", len(out), len(want), err)
	}
}

func TestExecHasATerminalThatBehaves(t *testing.T) {
	f := services()
	serveStreams(t, f)
	at := serveFake(t, f)
	p := sitDown(t, 90, 20)
	done := p.begin(t.Context(), at, "exec", "-it", "nginx", "sh")
	p.waitRaw(t)
	p.Type(t, "size 90x20\n")
	p.screen.until(t, "size 90x20")
	p.Type(t, "\x03rest\n") // Ctrl-C is the command's
	p.screen.until(t, `interrupted "" "rest\n"`)
	p.Resize(t, 70, 30)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // only a controlling terminal sends it
		t.Fatal(err)
	}
	p.Type(t, "size 70x30\n")
	p.screen.until(t, "size 70x30")
	p.Type(t, "exit 7\n")
	if err := <-done; ExitCode(err) != 7 {
		t.Errorf("got %v", err)
	}
	if p.mode(t) != p.before {
		t.Error("the terminal stays in raw mode")
	}
}

// A terminal that stays in raw mode echoes nothing, and its owner has to know `reset`.
func TestTheTerminalIsRestoredOnEveryWayOut(t *testing.T) {
	f := services()
	at := serveFake(t, f)
	p := sitDown(t, 80, 24)
	if err := <-p.begin(t.Context(), at, "exec", "-it", "nginx", "sh"); err == nil || p.mode(t) != p.before {
		t.Errorf("after a refused call: %v", err)
	}
	serveStreams(t, f)
	done := p.begin(t.Context(), at, "exec", "-it", "nginx", "sh")
	p.waitRaw(t)
	p.Type(t, "a\n")
	p.screen.until(t, `got "a"`)
	p.Type(t, "lose\n")
	if err := <-done; err == nil || p.mode(t) != p.before {
		t.Errorf("after a lost connection: %v", err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		p := sitDown(t, 80, 24)
		done = p.begin(t.Context(), at, "exec", "-it", "nginx", "sh")
		p.waitRaw(t)
		p.Type(t, "b\n")
		p.screen.until(t, `got "b"`)
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		err := <-done
		if ExitCode(err) != exitInterrupted || p.mode(t) != p.before {
			t.Errorf("after %s: %v", sig, err)
		}
		says(t, "the error", client.Explain(err).Error(), "the command is killed", "container nginx goes on")
	}
}

func TestAttachDetaches(t *testing.T) {
	f := services()
	f.asked = `{"config": {"tty": true, "stdin": true}}`
	serveStreams(t, f)
	at := serveFake(t, f)
	p := sitDown(t, 80, 24)
	done := p.begin(t.Context(), at, "attach", "nginx")
	p.waitRaw(t)
	p.Type(t, "hello\n")
	p.screen.until(t, `got "hello"`)
	p.Type(t, "\x10\x11")
	if err := <-done; err != nil || p.mode(t) != p.before {
		t.Errorf("got %v", err)
	}
	p.screen.until(t, "detached; container nginx goes on")
}

// A container that has ended gives attach its exit code.
func TestAttachExitsWithTheCodeOfTheContainer(t *testing.T) {
	f := services()
	f.asked = `{"config": {"stdin": true}}`
	f.cts[1].State, f.cts[1].ExitCode, f.cts[1].Reason = runtimeapi.ContainerState_CONTAINER_EXITED, 5, "Error"
	serveStreams(t, f)
	out, _, err := withInput(serveFake(t, f), "a\n", "attach", "nginx")
	if says(t, "attach", out, `got "a"`, "end of input"); ExitCode(err) != 5 {
		t.Errorf("got %v", err)
	}
}

func TestPortForward(t *testing.T) {
	f := services()
	serveStreams(t, f)
	at := serveFake(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	out, done := begin(ctx, at, "port-forward", "web", "0:80", "0:9")
	out.until(t, "to port 80 of pod web", "to port 9 of pod web")
	addresses := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(out.String(), -1)
	var conns []*net.TCPConn
	for range 3 { // side by side
		conn := dial(t, addresses[0])
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	if b, _ := io.ReadAll(dial(t, addresses[1])); len(b) > 0 {
		t.Errorf("got %q", b)
	}
	out.until(t, "port 9: ", "connection refused")
	for _, conn := range conns {
		_ = conn.CloseWrite()
		if b, err := io.ReadAll(conn); string(b) != `port 80 got "hello"` {
			t.Errorf("got %q: %v", b, err)
		}
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for _, bad := range []string{"x", "1:x", "0", "70000", "1:2:3"} {
		_, problem := berth(t, at, "port-forward", "web", bad)
		says(t, "port "+bad, problem, "LOCAL:REMOTE")
	}
}

// Ctrl-C took half a minute while the server did not answer.
func TestCtrlCDoesNotWaitForAServerThatDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 4096)) // the request
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
			"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1)) // the first stream, which is not answered
		asked <- conn
	}()
	f := services()
	f.execURL = "http://" + l.Addr().String() + "/exec"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, done := begin(ctx, serveFake(t, f), "exec", "nginx", "prog")
	conn := <-asked
	defer conn.Close()
	cancel()
	select {
	case err := <-done:
		if ExitCode(err) != exitInterrupted {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for the server")
	}
}
