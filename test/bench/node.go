// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// startTimeout is how long a daemon may take until CRI reports that it is ready.
const startTimeout = time.Minute

// node is one daemon with directories, a bridge and a subnet of its own.
type node struct {
	kind
	build    string   // the module's build directory
	registry string   // address of the images' registry
	env      []string // of the daemon, beside this process's
	dir      string   // of everything it keeps; short, sockets live below it
	socket   string   // CRI's
	bridge   string
	subnet   string
	network  string // name of the CNI network
	cgroup   string // parent of the pods' cgroups
	command  []string
	account  account // of the processor time of the daemon and its programs
	cmd      *exec.Cmd
	beside   *exec.Cmd     // a containerd that berth uses; nil: it runs inside
	up       bool          // it has answered since it was started last, and Client is connected to it
	ended    chan struct{} // closed when cmd was waited for
	*client.Client
}

// slot numbers the nodes of this process, so that each has a bridge and a subnet of its own.
var slot int

// newNode makes the directories and the configuration. close removes everything again, also after
// an error.
func newNode(k kind, build, registry string) (*node, error) {
	dir, err := os.MkdirTemp("", "bb")
	if err != nil {
		return nil, err
	}
	slot++
	id := fmt.Sprintf("bb%d-%d", os.Getpid()%100000, slot)
	n := &node{
		kind: k, build: build, registry: registry, dir: dir, bridge: id, network: id, cgroup: "/" + id,
		subnet: fmt.Sprintf("10.%d.%d.0/20", 100+os.Getpid()%100, slot%16*16),
	}
	for _, d := range []string{"net.d", "certs.d/" + imageHost, "logs", "hang", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return n, err
		}
	}
	for _, f := range []struct {
		path, body string
		mode       os.FileMode
	}{
		{"net.d/10-bench.conflist", conflist(n), 0o644},
		{"certs.d/" + imageHost + "/hosts.toml", hostsToml(registry), 0o644},
		{"hanging-runc", hangingRunc(n), 0o755},
	} {
		if err := os.WriteFile(filepath.Join(dir, f.path), []byte(f.body), f.mode); err != nil {
			return n, err
		}
	}
	if err := weighPods(n.cgroup); err != nil {
		return n, err
	}
	if n.account, err = openAccount(id + "-daemon"); err != nil {
		return n, err
	}
	n.command, err = k.prepare(n)
	for _, s := range k.settings {
		n.command = append(n.command, "--set", s)
	}
	return n, err
}

// conflist returns the CNI configuration of the pods, the same for all daemons: the default of
// berth and of containerd's documentation.
func conflist(n *node) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [
  {"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, n.network, n.bridge, n.dir+"/ipam", n.subnet)
}

// spawn starts the daemon's process.
func (n *node) spawn() error {
	log, err := os.OpenFile(n.dir+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(n.command[0], n.command[1:]...)
	n.cmd.Env = append(os.Environ(), "PATH="+n.build+"/libexec:"+os.Getenv("PATH"), "TMPDIR="+n.dir+"/tmp")
	n.cmd.Env = append(n.cmd.Env, n.env...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	// signals from the terminal are for the bench alone
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	cmd, ended := n.cmd, make(chan struct{})
	n.ended = ended
	go func() { _ = cmd.Wait(); close(ended) }() // ends with the process, which end waits for
	return n.account.take(cmd.Process.Pid)
}

// start starts the daemon, and waits until it is ready and done, unless nil, reports true. It
// returns the time since just before the process was started.
func (n *node) start(ctx context.Context, done func(context.Context, *client.Client) bool) (time.Duration, error) {
	began := time.Now()
	if err := n.spawn(); err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		// A gRPC client that was refused waits a second before it tries again, so find out first
		// whether the socket accepts.
		if c, err := net.Dial("unix", n.socket); err == nil {
			_ = c.Close()
			if ok, took, err := n.answers(ctx, began, done); ok || err != nil {
				return took, err
			}
		}
		select {
		case <-n.ended:
			return 0, fmt.Errorf("%s ended before it was ready:\n%s", n.name, n.tail())
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
		if time.Since(began) > startTimeout {
			return 0, fmt.Errorf("%s is not ready after %s:\n%s", n.name, startTimeout, n.tail())
		}
	}
	return 0, ctx.Err()
}

// answers polls a daemon that accepts connections until it is ready. It returns false if the daemon
// did not answer at all.
func (n *node) answers(ctx context.Context, began time.Time, done func(context.Context, *client.Client) bool) (bool, time.Duration, error) {
	c, err := client.Dial(n.socket)
	if err != nil {
		return false, 0, err
	}
	for first := true; time.Since(began) < startTimeout && ctx.Err() == nil; first = false {
		st, err := c.Status(ctx, &runtimeapi.StatusRequest{})
		if err == nil && ready(st) && (done == nil || done(ctx, c)) {
			took := time.Since(began)
			n.disconnect()
			n.Client, n.up = c, true
			return true, took, nil
		}
		if err != nil && first {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return false, 0, c.Close()
}

func ready(st *runtimeapi.StatusResponse) bool {
	ok := 0
	for _, c := range st.GetStatus().GetConditions() {
		if (c.GetType() == runtimeapi.RuntimeReady || c.GetType() == runtimeapi.NetworkReady) && c.GetStatus() {
			ok++
		}
	}
	return ok == 2
}

func (n *node) disconnect() {
	if n.Client != nil {
		_ = n.Client.Close()
		n.Client = nil
	}
}

// end sends the daemon a signal and waits for its end. A daemon that does not end within half a
// minute is killed.
func (n *node) end(sig syscall.Signal) error {
	if n.cmd == nil {
		return nil
	}
	n.up = false
	_ = n.cmd.Process.Signal(sig)
	select {
	case <-n.ended:
		return nil
	case <-time.After(30 * time.Second):
	}
	_ = n.cmd.Process.Kill()
	<-n.ended
	return fmt.Errorf("%s did not end within 30 s of %s", n.name, sig)
}

// tail returns the end of the daemon's log.
func (n *node) tail() string {
	b, _ := os.ReadFile(n.dir + "/log")
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// close removes all pods through CRI, stops the daemon, and removes everything that newNode made.
// Remains of the daemon itself are an error.
func (n *node) close(interrupted bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var errs []error
	// interrupted during the restart: only the daemon can remove its pods
	if n.Client != nil && !n.up {
		if err := n.end(syscall.SIGKILL); err != nil {
			errs = append(errs, err)
		}
		_, err := n.start(ctx, nil)
		errs = append(errs, err)
	}
	if n.up {
		errs = append(errs, n.removeAll(ctx, 4))
		// calls that were cancelled go on in the daemon, and their objects are not listed yet
		if interrupted {
			time.Sleep(5 * time.Second)
			errs = append(errs, n.removeAll(ctx, 4))
		}
	}
	n.disconnect()
	errs = append(errs, n.end(syscall.SIGTERM))
	if n.beside != nil {
		_ = n.beside.Process.Kill()
		_ = n.beside.Wait()
	}
	errs = append(errs, n.leftovers(), os.RemoveAll(n.dir))
	if n.account.dir != "" {
		errs = append(errs, n.account.close())
	}
	return errors.Join(errs...)
}
