// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Process is a child of the test with its output.
type Process struct {
	t    testing.TB
	cmd  *exec.Cmd
	out  *lines
	done chan struct{}
}

// lines collects output and passes each line on.
type lines struct {
	mu    sync.Mutex
	all   bytes.Buffer
	seen  chan string
	ended chan struct{} // closed once everything is here that was written before endMark
}

// endMark is written to the output once the process has ended. A child of the process may hold the
// output open, so that it does not end then.
const endMark = "\x00the process has ended"

func (l *lines) follow(r io.Reader) {
	ended := sync.OnceFunc(func() { close(l.ended) })
	defer ended()
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		text, last := strings.CutSuffix(sc.Text(), endMark)
		if last && text == "" {
			ended()
			continue
		}
		l.mu.Lock()
		l.all.WriteString(text + "\n")
		l.mu.Unlock()
		select {
		case l.seen <- text:
		default:
		}
		if last {
			ended()
		}
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Spawn starts a program that finds the node's shim and runc in its PATH. The caller ends it.
func (n *Node) Spawn(name string, args ...string) *Process {
	n.t.Helper()
	return n.spawn(nil, nil, nil, name, args...)
}

// spawn is Spawn with a standard error other than the standard output, more in the environment, and
// descriptors from 3 on.
func (n *Node) spawn(stderr *os.File, env []string, files []*os.File, name string, args ...string) *Process {
	n.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(append(os.Environ(), "PATH="+n.libexec+":"+os.Getenv("PATH")), env...)
	cmd.ExtraFiles = files
	// signals from a terminal to the test do not reach it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if stderr != nil {
		cmd.Stderr = stderr
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	p := &Process{
		t:    n.t,
		cmd:  cmd,
		out:  &lines{seen: make(chan string, 10000), ended: make(chan struct{})},
		done: make(chan struct{}),
	}
	go p.out.follow(r) // ends with the last holder of the pipe
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
		_, _ = w.WriteString(endMark + "\n")
		_ = w.Close()
		<-p.out.ended
	}()
	return p
}

// Kill sends a signal and waits for the end of the process, which fails the test if it takes
// minutes.
func (p *Process) Kill(sig syscall.Signal) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(sig)
	p.ended()
}

// Signal sends a signal.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Wait waits for the end of the process, as Kill does, and returns its exit code; -1 after a
// signal.
func (p *Process) Wait() int {
	p.t.Helper()
	p.ended()
	return p.cmd.ProcessState.ExitCode()
}

// Pid is the ID of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Output is the output of the process so far; all of it once Wait or Kill has returned.
func (p *Process) Output() string { return p.out.String() }

// eachProcess calls f with every process of this host and its command line, arguments separated by
// zeros.
func eachProcess(f func(pid int, cmdline []byte)) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range found {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(p); err == nil {
			f(pid, b)
		}
	}
}

// Shims are the pids of the node's shims by the ID that each was started for. A process
// that starts a shim, or cleans up after one, is not among them.
func (n *Node) Shims() map[string]int {
	found := map[string]int{}
	eachProcess(func(pid int, b []byte) {
		args := bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0})
		if last := string(args[len(args)-1]); last == "start" || last == "delete" {
			return
		}
		if !bytes.Equal([]byte(filepath.Base(string(args[0]))), []byte("containerd-shim-runc-v2")) || !bytes.Contains(b, []byte(n.Dir+"/")) {
			return
		}
		for i, a := range args[:len(args)-1] {
			if string(a) == "-id" {
				found[string(args[i+1])] = pid
			}
		}
	})
	return found
}

// ShimOf is the pid of the shim that serves a pod, which may be one that several pods share; 0 for
// none.
func (n *Node) ShimOf(pod string) int {
	shims := n.Shims()
	if pid, ok := shims[pod]; ok {
		return pid
	}
	b, _ := os.ReadFile(n.ShimBundle(pod) + "/config.json")
	for id, pid := range shims {
		if bytes.Contains(b, []byte(`"`+id+`"`)) {
			return pid
		}
	}
	return 0
}

// ProcessOver reports whether a process has ended, whether or not its parent has waited for it.
func ProcessOver(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	return err != nil
}
