// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What berth proves depends on the kernel it proves it on. In the guest (`make test-guest`) that has to be an older
// one, with nothing but cgroup v2, and with AppArmor: a guest that is not would prove nothing.
func TestBerthKnowsWhatThisKernelTells(t *testing.T) {
	n := start(t, options{})
	tells := kernelTellsExits(t)
	if n.exact() != tells {
		t.Errorf("berth says that the kernel tells exit codes: %v; it does: %v", n.exact(), tells)
	}
	if os.Getenv("BERTH_GUEST") == "" {
		return
	}
	if tells {
		t.Error("the guest's kernel tells exit codes by itself (Linux 6.15): it proves nothing about one that does not")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Errorf("/sys/fs/cgroup of the guest is no cgroup2: %#x %v", fs.Type, err)
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), " - cgroup ") {
		t.Errorf("the guest has cgroup v1 too: %s %v", b, err)
	}
	if !appArmorOn() {
		t.Error("the guest has no AppArmor")
	}
	_, id := n.sh("sleep 1000")
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", n.pid(id))); err != nil || !strings.HasPrefix(string(b), "0::/") || !strings.Contains(string(b), id) {
		t.Errorf("cgroup of %s: %q %v", id, b, err)
	}
}

// kernelTellsExits tries PIDFD_INFO_EXIT on a process that was reaped.
func kernelTellsExits(t *testing.T) bool {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read x; exit 42")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_ = in.Close()
	_ = cmd.Wait()
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	return unix.IoctlPidfdInfo(fd, &info) == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 && unix.WaitStatus(uint32(info.Exit_code)).ExitStatus() == 42
}

// An older kernel forgets the code of a process once it is reaped: then it is the shim's, exact. berth is stopped
// while the processes end, so that it cannot read the code off a zombie; or it is killed.
func TestTheCodeOfAReapedProcessIsExact(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		for _, away := range []func() (back func()){
			func() func() {
				_ = n.berth.cmd.Process.Signal(syscall.SIGSTOP)
				return func() { _ = n.berth.cmd.Process.Signal(syscall.SIGCONT) }
			},
			func() func() { n.berth.kill(syscall.SIGKILL); return n.startBerth },
		} {
			zero, some, killed := n.waits("exit 0"), n.waits("exit 42"), n.waits("exit 1")
			pids := map[int]syscall.Signal{n.pid(zero): syscall.SIGTERM, n.pid(some): syscall.SIGTERM, n.pid(killed): syscall.SIGKILL}
			back := away()
			for pid, sig := range pids {
				if err := syscall.Kill(pid, sig); err != nil {
					t.Error(err)
				}
			}
			for pid := range pids {
				n.until(fmt.Sprintf("the shim has reaped %d", pid), func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
			}
			back()
			expectExit(t, n.ended(zero), 0, "Completed")
			expectExit(t, n.ended(some), 42, "Error")
			expectExit(t, n.ended(killed), 137, "Error")
			if n.exact() {
				continue
			}
			for _, id := range []string{zero, some, killed} {
				if by := n.settledBy(id); by != "task" && by != "stream" {
					t.Errorf("%s was settled by %q on a kernel that cannot know the code", id, by)
				}
			}
		}
	})
}

// A shim that hangs neither delays nor changes the truth: it does not reap, and the zombie tells on every kernel.
func TestAHangingShimDelaysNothing(t *testing.T) {
	n := start(t, options{})
	id := n.waits("exit 42")
	shims := n.shims()
	signal := func(sig syscall.Signal) {
		for _, pid := range shims {
			if err := syscall.Kill(pid, sig); err != nil {
				t.Error(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	if err := syscall.Kill(n.pid(id), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expectExit(t, n.ended(id), 42, "Error")
	if by := n.settledBy(id); by != "kernel" {
		t.Errorf("settled by %q", by)
	}
}

// PROPERTIES 5: shim killed, containerd and berth away, the process ends with 42 and is reaped by somebody else. A newer
// kernel still knows; with an older one nobody does, and that is said: not the 137 that containerd reports when it
// is back and cleans up after the shim.
func TestNoCodeIsInventedForADeadShim(t *testing.T) {
	// What the shim leaves behind becomes a child of this process, which reaps it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	n := start(t, options{external: true})
	id := n.waits("exit 42")
	pid := n.pid(id)
	berth, containerd := n.berth.cmd.Process, n.ctrd.cmd.Process
	_, _ = containerd.Signal(syscall.SIGSTOP), berth.Signal(syscall.SIGSTOP)
	defer func() { _, _ = containerd.Signal(syscall.SIGCONT), berth.Signal(syscall.SIGCONT) }() // also when the test fails
	for _, shim := range n.shims() {
		_ = syscall.Kill(shim, syscall.SIGKILL)
		_, _ = syscall.Wait4(shim, nil, 0, nil)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var how syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &how, 0, nil); err != nil || how.ExitStatus() != 42 {
		t.Fatalf("the process ended with %v %v", how, err)
	}
	_ = berth.Signal(syscall.SIGCONT)
	honest := func() {
		t.Helper()
		if n.exact() {
			expectExit(t, n.ended(id), 42, "Error")
		} else {
			expectExit(t, n.ended(id), 255, "Unknown")
		}
	}
	honest()
	_ = containerd.Signal(syscall.SIGCONT)
	n.until("containerd has cleaned up", func() bool {
		_, err := os.Stat(filepath.Join(n.dir, "c/io.containerd.runtime.v2.task/k8s.io", id))
		return errors.Is(err, os.ErrNotExist)
	})
	_, later := n.sh("exit 7") // its exit is told after what containerd had to say of the other
	expectExit(t, n.ended(later), 7, "Error")
	honest()
}

// PROPERTIES 10: whatever the kernel kills for want of memory is OOMKilled, at once or after a while, with berth there
// or not; what was merely killed is not.
func TestEveryOOMKillIsToldAndNoOther(t *testing.T) {
	n := start(t, options{})
	cfg := podConfig(n)
	pod := n.pod(cfg)
	eats := func(name, script string) string {
		c := containerConfig(name, "sh", "-c", script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
		return n.run(pod, cfg, c)
	}
	const grow, wait = "a=0123456789; while :; do a=$a$a; sleep 0.05; done", "; echo ready; while :; do sleep 0.05; done"
	fast := eats("fast", "exec tail /dev/zero")
	slow := eats("slow", grow)
	child := eats("child", "tail /dev/zero; exit $?")
	other := eats("other-code", "tail /dev/zero; exit 7")
	fine := eats("fine", "tail /dev/zero; exit 0")
	kills := eats("kills-itself", "sh -c 'kill -9 $$'; exit $?")
	plain := eats("plain", "trap : TERM"+wait)
	while := eats("while-away", "trap 'exec tail /dev/zero' TERM"+wait)
	for _, id := range []string{plain, while} {
		n.until("ready", func() bool { return n.log(id) != "" })
	}
	if err := syscall.Kill(n.pid(plain), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	expectExit(t, n.ended(fast), 137, "OOMKilled")
	expectExit(t, n.ended(slow), 137, "OOMKilled")
	expectExit(t, n.ended(child), 137, "OOMKilled")
	expectExit(t, n.ended(other), 7, "OOMKilled")
	expectExit(t, n.ended(fine), 0, "Completed")
	expectExit(t, n.ended(kills), 137, "Error")
	expectExit(t, n.ended(plain), 137, "Error")

	pid := n.pid(while)
	n.berth.kill(syscall.SIGKILL)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.until("the shim has reaped it", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	n.startBerth()
	expectExit(t, n.ended(while), 137, "OOMKilled")
}

// RuntimeDefault, and no word at all, mean the default profile wherever there is AppArmor: that the program is under
// it, and that it is kept from what the profile denies.
func TestAppArmorsDefaultProfileConfines(t *testing.T) {
	n := start(t, options{})
	cfg := podConfig(n)
	pod := n.pod(cfg)
	of := func(name string, p *runtimeapi.SecurityProfile) *runtimeapi.ContainerConfig {
		c := containerConfig(name, "sh", "-c", "mkdir /m; mount -t tmpfs none /m && echo mounted || echo denied; exec sleep 1000")
		c.Linux.SecurityContext.Apparmor = p
		c.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
		return c
	}
	if !appArmorOn() {
		c := of("c", &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "localhost/x"})
		_, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: cfg})
		if err == nil || !strings.Contains(err.Error(), "no AppArmor") {
			t.Errorf("a profile where there is no AppArmor: %v", err)
		}
		return
	}
	for _, tt := range []struct {
		name    string
		profile *runtimeapi.SecurityProfile
		label   string
		says    string
	}{
		{"none", nil, "cri-containerd.apparmor.d (enforce)", "denied\n"},
		{"default", &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, "cri-containerd.apparmor.d (enforce)", "denied\n"},
		{"unconfined", &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, "unconfined", "mounted\n"},
	} {
		id := n.run(pod, cfg, of(tt.name, tt.profile))
		n.until("it has tried", func() bool { return strings.HasSuffix(n.log(id), "ed\n") })
		label, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", n.pid(id)))
		if err != nil || strings.TrimSpace(string(label)) != tt.label {
			t.Errorf("%s: the program is under %q %v, want %s", tt.name, label, err, tt.label)
		}
		if got := n.log(id); !strings.HasSuffix(got, tt.says) {
			t.Errorf("%s: the program says %q, want %q", tt.name, got, tt.says)
		}
	}
}

func appArmorOn() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// waits is a container that does what end says once it is sent SIGTERM, in a pod of its own.
func (n *node) waits(end string) string {
	n.t.Helper()
	_, id := n.sh("trap '" + end + "' TERM; echo ready; while :; do sleep 0.05; done")
	n.until("ready", func() bool { return n.log(id) != "" })
	return id
}

// pid is the container's init process.
func (n *node) pid(id string) int {
	n.t.Helper()
	resp, err := n.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		n.t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil || info.Pid <= 1 {
		n.t.Fatalf("pid %d of %s: %v", info.Pid, id, err)
	}
	return info.Pid
}

// settledBy is the witness whose word stood when the exit was settled.
func (n *node) settledBy(id string) string {
	n.t.Helper()
	raw, err := n.Timeline(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	var told struct {
		Entries []struct{ What, Detail string }
	}
	if err := json.Unmarshal(raw, &told); err != nil {
		n.t.Fatalf("%v: %s", err, raw)
	}
	for _, e := range told.Entries {
		if e.What == "settled" {
			_, by, _ := strings.Cut(e.Detail, "origin=")
			return by
		}
	}
	n.t.Fatalf("not settled: %s", raw)
	return ""
}

// shims are the pids of the node's shims: at least one.
func (n *node) shims() []int {
	n.t.Helper()
	var pids []int
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		b, _ := os.ReadFile(p)
		var pid int
		if _, err := fmt.Sscanf(p, "/proc/%d/", &pid); err == nil && strings.Contains(string(b), "containerd-shim-runc-v2") && strings.Contains(string(b), n.dir+"/") {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		n.t.Fatal("no shim was found")
	}
	return pids
}
