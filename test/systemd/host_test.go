// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

const (
	socket = "/run/berth/berth.sock"
	// settings is berth's configuration.
	settings = "/etc/berth/config.toml"
	// paused has berth make a pause process in each pod, whose descriptor systemd keeps besides that of
	// each container.
	paused = "[pod]\npause = 'always'\n"
	// dropIns has what a test changes in berth's unit.
	dropIns = "/run/systemd/system/berth.service.d"
)

// host is a host whose systemd runs berth.
type host struct {
	*node.Node
	t *testing.T
}

// start starts berth with settings and with changes of its unit. At the end of the test berth is
// stopped, and the changes are taken back.
func start(t *testing.T, config, unit string) *host {
	t.Helper()
	if os.Getenv("BERTH_GUEST") == "" {
		t.Fatal("these tests change the host's units: run make test-systemd")
	}
	h := &host{t: t}
	h.configure(config)
	if unit != "" {
		if err := os.MkdirAll(dropIns, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dropIns+"/test.conf", []byte(unit), 0o644); err != nil {
			t.Fatal(err)
		}
		h.systemctl("daemon-reload")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the journal:\n%s", h.run("journalctl", "--no-pager", "-b", "-o", "short-monotonic", "-n", "150", "_PID=1", "+", "_SYSTEMD_UNIT=berth.service"))
		}
		h.systemctl("stop", "berth.socket", "berth.service")
		h.configure("")
		if unit != "" {
			if err := os.RemoveAll(dropIns); err != nil {
				t.Error(err)
			}
			h.systemctl("daemon-reload")
		}
	})
	h.systemctl("start", "berth")
	h.Node = node.Installed(t, socket)
	return h
}

// configure replaces berth's settings.
func (h *host) configure(config string) {
	h.t.Helper()
	if err := os.WriteFile(settings, []byte(config), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a program that has to succeed, and returns its output.
func (h *host) run(name string, args ...string) string {
	h.t.Helper()
	out, err := command.Within(h.t, 10*time.Minute, name, args...).CombinedOutput()
	if err != nil {
		h.t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (h *host) systemctl(args ...string) {
	h.t.Helper()
	h.run("systemctl", args...)
}

// property is a property of a unit. An unknown unit has properties, too.
func (h *host) property(unit, name string) string {
	h.t.Helper()
	return h.run("systemctl", "show", "--value", "-p", name, unit)
}

// number is a property that is a number.
func (h *host) number(unit, name string) int {
	h.t.Helper()
	v, err := strconv.Atoi(h.property(unit, name))
	if err != nil {
		h.t.Fatalf("%s of %s: %v", name, unit, err)
	}
	return v
}

// until waits for a condition. Starting and stopping services takes time in an emulated machine.
func (h *host) until(what string, ok func() bool) {
	h.t.Helper()
	for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(100 * time.Millisecond) {
		if ok() {
			return
		}
	}
	h.t.Fatalf("still not: %s", what)
}

// logged waits until berth's log in the journal has a text: what a unit has written before it is
// active may be in the journal only afterwards.
func (h *host) logged(text string) {
	h.t.Helper()
	h.until("the journal has "+text, func() bool {
		return strings.Contains(h.run("journalctl", "--no-pager", "-b", "-u", "berth", "-o", "cat"), text)
	})
}

// stored waits until systemd keeps a number of berth's descriptors.
func (h *host) stored(want int) {
	h.t.Helper()
	have := -1
	defer func() {
		if have != want {
			h.t.Errorf("systemd keeps %d descriptors of berth", have)
		}
	}()
	h.until(fmt.Sprintf("systemd keeps %d descriptors of berth", want), func() bool {
		have = h.number("berth", "NFileDescriptorStore")
		return have == want
	})
}

// call asks berth for its version over a new connection. It waits for a berth that is being
// started for longer than gRPC does by itself, which is 20 seconds.
func (h *host) call() error {
	const patience = 3 * time.Minute
	c, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: patience}))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	_, err = runtimeapi.NewRuntimeServiceClient(c).Version(ctx, &runtimeapi.VersionRequest{})
	return err
}

// measured waits until a container that ended while berth was away is EXITED with a code. A shim
// that does not answer soon, in an emulated machine, has its code reported as unknown until it
// does.
func (h *host) measured(id string) *runtimeapi.ContainerStatus {
	h.t.Helper()
	h.until("the code of "+id+" is known", func() bool {
		st := h.Container(id)
		return st.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && st.GetReason() != "Unknown"
	})
	return h.Container(id)
}

// waiting is a script that says when it is ready, and ends with 42 when it gets SIGTERM.
const waiting = "trap 'exit 42' TERM; echo ready; while :; do sleep 0.1; done"

// waits runs a container that ends with 42 when it gets SIGTERM.
func (h *host) waits() (pod, id string) {
	h.t.Helper()
	pod, id = h.Sh(waiting)
	h.Until("it is ready", func() bool { return h.Log(id) != "" })
	return pod, id
}

// end ends a process, and waits until it has been reaped.
func (h *host) end(pid int, sig syscall.Signal) {
	h.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		h.t.Fatal(err)
	}
	h.until(fmt.Sprintf("process %d has ended", pid), func() bool { return !lives(pid) })
}

func lives(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// parent is the parent of a process: the shim of a container's.
func (h *host) parent(pid int) int {
	h.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		h.t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	ppid, err := strconv.Atoi(f[1])
	if err != nil || ppid <= 1 {
		h.t.Fatalf("parent of %d: %q %v", pid, f[1], err)
	}
	return ppid
}

// group is the directory of the cgroup of a process.
func (h *host) group(pid int) string {
	h.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		h.t.Fatal(err)
	}
	_, path, _ := strings.Cut(strings.TrimSpace(string(b)), "::")
	return filepath.Join("/sys/fs/cgroup", path)
}

func (h *host) expectRunning(id string, pid int) {
	h.t.Helper()
	if st := h.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || h.Pid(id) != pid || !lives(pid) {
		h.t.Errorf("the container whose process was %d is %v", pid, st)
	}
}
