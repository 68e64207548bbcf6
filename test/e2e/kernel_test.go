// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/command"
	"berth/test/node"
)

// What berth proves depends on the kernel it proves it on. In the guest (`make test-guest`) that
// has to be an older one, with nothing but cgroup v2, and with AppArmor: a guest that is not would
// prove nothing.
func TestBerthKnowsWhatThisKernelReports(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	reports := kernelReportsExits(t)
	if n.Exact() != reports {
		t.Errorf("berth says that the kernel reports exit codes: %v; it does: %v", n.Exact(), reports)
	}
	if os.Getenv("BERTH_GUEST") == "" {
		return
	}
	if reports {
		t.Error("the guest's kernel reports exit codes (Linux 6.15): it proves nothing about one that does not")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Errorf("/sys/fs/cgroup of the guest is not a cgroup2: %#x %v", fs.Type, err)
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), " - cgroup ") {
		t.Errorf("the guest has cgroup v1 too: %s %v", b, err)
	}
	if !appArmorOn() {
		t.Error("the guest has no AppArmor")
	}
	_, id := n.Sh("sleep 1000")
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", n.Pid(id))); err != nil || !strings.HasPrefix(string(b), "0::/") || !strings.Contains(string(b), id) {
		t.Errorf("cgroup of %s: %q %v", id, b, err)
	}
}

// kernelReportsExits tries PIDFD_INFO_EXIT on a process that was reaped.
func kernelReportsExits(t *testing.T) bool {
	t.Helper()
	cmd := command.New(t, "/bin/sh", "-c", "read x; exit 42")
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

// An older kernel forgets the code of a process once it is reaped: then it is the shim's, exact.
// berth is stopped while the processes end, so that it cannot read the code off a zombie; or it is
// killed.
func TestTheCodeOfAReapedProcessIsExact(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		for i, away := range []func() (back func()){
			func() func() {
				signalAll(t, map[string]int{"berth": n.Berth.Pid()}, syscall.SIGSTOP)
				return func() { n.Berth.Signal(syscall.SIGCONT) }
			},
			func() func() { n.Berth.Kill(syscall.SIGKILL); return n.StartBerth },
		} {
			in := func(name, end string) string { return waitsIn(t, n, pod, cfg, fmt.Sprint(name, i), end) }
			zero, some, killed := in("zero", "exit 0"), in("some", "exit 42"), in("killed", "exit 1")
			pids := map[int]syscall.Signal{n.Pid(zero): syscall.SIGTERM, n.Pid(some): syscall.SIGTERM, n.Pid(killed): syscall.SIGKILL}
			back := away()
			for pid, sig := range pids {
				if err := syscall.Kill(pid, sig); err != nil {
					t.Error(err)
				}
			}
			for pid := range pids {
				n.Until(fmt.Sprintf("the shim has reaped %d", pid), func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
			}
			back()
			node.ExpectExit(t, n.Ended(zero), 0, "Completed")
			node.ExpectExit(t, n.Ended(some), 42, "Error")
			node.ExpectExit(t, n.Ended(killed), 137, "Error")
			if n.Exact() {
				continue
			}
			for _, id := range []string{zero, some, killed} {
				if by := settledBy(t, n, id); by != "task" && by != "stream" {
					t.Errorf("%s was settled by %q on a kernel that cannot know the code", id, by)
				}
			}
		}
	})
}

// A shim that hangs neither delays nor changes the truth: it does not reap, and a zombie
// keeps its code, which every kernel shows.
func TestAHangingShimDelaysNothing(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	id := waits(t, n, "exit 42")
	shims := n.Shims()
	defer signalAll(t, shims, syscall.SIGCONT)
	signalAll(t, shims, syscall.SIGSTOP)
	if err := syscall.Kill(n.Pid(id), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(id), 42, "Error")
	if by := settledBy(t, n, id); by != "kernel" {
		t.Errorf("settled by %q", by)
	}
}

// PROPERTIES 5: shim killed, containerd and berth away, the process ends with 42 and is reaped by
// somebody else. A newer kernel still knows; with an older one nobody does, and the code is
// reported as unknown: not as the 137 that containerd reports when it is back and cleans up after
// the shim.
func TestNoCodeIsInventedForADeadShim(t *testing.T) {
	// What the shim leaves behind becomes a child of this process, which reaps it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	n := node.Start(t, node.Options{External: true, Args: ownShims})
	id := waits(t, n, "exit 42")
	pid := n.Pid(id)
	berth, containerd := n.Berth, n.Containerd
	signalAll(t, map[string]int{"containerd": containerd.Pid(), "berth": berth.Pid()}, syscall.SIGSTOP)
	defer func() { containerd.Signal(syscall.SIGCONT); berth.Signal(syscall.SIGCONT) }() // also when the test fails
	endWithoutShim(t, n, pid)
	berth.Signal(syscall.SIGCONT)
	honest := func() {
		t.Helper()
		if n.Exact() {
			node.ExpectExit(t, n.Ended(id), 42, "Error")
		} else {
			node.ExpectExit(t, n.Ended(id), 255, "Unknown")
		}
	}
	honest()
	containerd.Signal(syscall.SIGCONT)
	n.Until("containerd has cleaned up", func() bool {
		_, err := os.Stat(filepath.Join(n.Dir, "c/io.containerd.runtime.v2.task/k8s.io", id))
		return errors.Is(err, os.ErrNotExist)
	})
	_, later := n.Sh("exit 7") // its exit is published after what containerd reports of the other
	node.ExpectExit(t, n.Ended(later), 7, "Error")
	honest()
}

// PROPERTIES 10: what the OOM killer ends is OOMKilled, at once or after a
// while, with berth there or not; what was merely killed is not.
func TestEveryOOMKillIsReportedAndNoOther(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	eats := func(name, script string) string {
		c := node.ContainerConfig(name, "sh", "-c", script)
		c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
		return n.Run(pod, cfg, c)
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
		n.Until("ready", func() bool { return n.Log(id) != "" })
	}
	if err := syscall.Kill(n.Pid(plain), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	node.ExpectExit(t, n.Ended(fast), 137, "OOMKilled")
	node.ExpectExit(t, n.Ended(slow), 137, "OOMKilled")
	node.ExpectExit(t, n.Ended(child), 137, "OOMKilled")
	node.ExpectExit(t, n.Ended(other), 7, "OOMKilled")
	node.ExpectExit(t, n.Ended(fine), 0, "Completed")
	node.ExpectExit(t, n.Ended(kills), 137, "Error")
	node.ExpectExit(t, n.Ended(plain), 137, "Error")

	pid := n.Pid(while)
	n.Berth.Kill(syscall.SIGKILL)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.Until("the shim has reaped it", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	n.StartBerth()
	node.ExpectExit(t, n.Measured(while), 137, "OOMKilled")
}

// RuntimeDefault, and no word at all, mean the default profile wherever there is AppArmor: that the
// program is under it, and that it is kept from what the profile denies.
func TestAppArmorsDefaultProfileConfines(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	of := func(name string, p *runtimeapi.SecurityProfile) *runtimeapi.ContainerConfig {
		c := node.ContainerConfig(name, "sh", "-c", "mkdir /m; mount -t tmpfs none /m && echo mounted || echo denied; exec sleep 1000")
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
		id := n.Run(pod, cfg, of(tt.name, tt.profile))
		n.Until("it has tried", func() bool { return strings.HasSuffix(n.Log(id), "ed\n") })
		label, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", n.Pid(id)))
		if err != nil || strings.TrimSpace(string(label)) != tt.label {
			t.Errorf("%s: the program is under %q %v, want %s", tt.name, label, err, tt.label)
		}
		if got := n.Log(id); !strings.HasSuffix(got, tt.says) {
			t.Errorf("%s: the program says %q, want %q", tt.name, got, tt.says)
		}
	}
}

// runc's libseccomp is older than some system calls of this kernel. A profile that denies one of
// them by name let it through.
func TestASeccompProfileDeniesWhatItNamesOrIsRefused(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{})
	cfg := n.PodConfig()
	pod := n.Pod(cfg)
	create := func(name, text string) (string, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "profile.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := node.ContainerConfig(name, "sh", "-c", "mkdir /m && echo made || echo denied")
		c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: path}
		resp, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: cfg})
		return resp.GetContainerId(), err
	}
	_, err := create("unknown", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","not_a_call","mkdir\nmount"],"action":"SCMP_ACT_ERRNO"}]}`)
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "it denies \"mkdir\\nmount\", not_a_call,") {
		t.Errorf("a profile with a system call that is let through: %v", err)
	}
	id, err := create("known", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"},{"names":["not_a_call"],"action":"SCMP_ACT_LOG"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	n.Ended(id)
	if got := n.Log(id); !strings.Contains(got, "denied\n") {
		t.Errorf("the program says %q", got)
	}
}

func appArmorOn() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// waits runs a container, in a pod of its own, that does what end says when it gets SIGTERM.
func waits(t *testing.T, n *node.Node, end string) string {
	t.Helper()
	cfg := n.PodConfig()
	return waitsIn(t, n, n.Pod(cfg), cfg, "waits", end)
}

// waitsIn runs such a container in a pod.
func waitsIn(t *testing.T, n *node.Node, pod string, sandbox *runtimeapi.PodSandboxConfig, name, end string) string {
	t.Helper()
	id := n.Run(pod, sandbox, node.ContainerConfig(name, "sh", "-c", "trap '"+end+"' TERM; echo ready; while :; do sleep 0.05; done"))
	n.Until("ready", func() bool { return n.Log(id) != "" })
	return id
}

// settledBy is the witness whose fact the exit was settled with.
func settledBy(t *testing.T, n *node.Node, id string) string {
	t.Helper()
	history := n.History(id)
	for _, e := range history {
		if e.Kind == "ExitSettled" {
			_, by, _ := strings.Cut(e.Detail, "witness=")
			return by
		}
	}
	t.Fatalf("not settled: %v", history)
	return ""
}

// berth, containerd and the shim are all dead when the process ends, and what was left of it is
// reaped: the pidfd that the service manager kept gives the next berth its code, where the kernel
// can.
func TestTheCodeSurvivesEverybody(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	n := node.Start(t, node.Options{External: true, ServiceManager: true, Args: []string{"--set", "pod.pause=always"}})
	id, runs := waits(t, n, "exit 42"), waits(t, n, "exit 43")
	pid := n.Pid(id)
	n.Until("all are kept", func() bool { return len(n.Kept()) == 4 }) // and two sandboxes
	n.Berth.Kill(syscall.SIGKILL)
	n.Containerd.Kill(syscall.SIGKILL)
	endWithoutShim(t, n, pid)
	n.StartContainerd()
	n.StartBerth()
	if n.Exact() {
		node.ExpectExit(t, n.Ended(id), 42, "Error")
	} else {
		node.ExpectExit(t, n.Ended(id), 255, "Unknown")
	}
	// The other one lost its shim, too; containerd, back again, ends what lost its shim. Its code
	// is as measured as the kernel can.
	if st := n.Ended(runs); n.Exact() && (st.GetExitCode() != 137 || st.GetReason() != "Error") {
		t.Errorf("%v", st)
	}
}

// endWithoutShim kills the shims, has pid end with 42 and reaps it: the test is a subreaper.
func endWithoutShim(t *testing.T, n *node.Node, pid int) {
	t.Helper()
	for _, shim := range n.Shims() {
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
}
