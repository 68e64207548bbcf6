// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// shimFault is a fault of a shim that several pods share.
type shimFault struct {
	name string
	// stall is the method of the shim that does not answer for its pods and their containers; ""
	// for a fault that do makes.
	stall string
	// do makes the fault, and returns the function that mends it.
	do func(t *testing.T, n *node.Node, pod string, shim int) (mend func())
	// removal is "waits" if the removal of a pod needs the answer that does not come, and the call
	// returns with the obstacle.
	removal string
	// next is what becomes of the next container in a pod: its shim is "another", it "waits" for the
	// shim, or it is "refused"; the error names the shim. "" is for any of these.
	next string
	// refuses is set if the shim answers, and accepts nothing new.
	refuses bool
}

var shimFaults = []shimFault{
	// A shim that is out of memory is one of these two: the kernel kills it, or Go ends it. A limit of
	// its address space holds for the OCI runtimes that it starts as well, whose failure depends on
	// what they map by then, and is no row.
	{name: "killed", do: signalled(unix.SIGKILL), next: "another"},
	{name: "panics", do: signalled(unix.SIGABRT), next: "another"},
	{name: "stopped", do: signalled(unix.SIGSTOP), next: "waits"},
	{name: "loses its socket", do: losesSocket, next: "refused"},
	{name: "out of descriptors", do: withoutDescriptors, refuses: true},
	{name: "hangs in Create", stall: "shim.Create", next: "waits"},
	{name: "hangs in Start", stall: "shim.Start"},
	{name: "hangs in Wait", stall: "shim.Wait"},
	{name: "hangs in State", stall: "shim.State"},
	{name: "hangs in Kill", stall: "shim.Kill"},
	{name: "hangs in Pids", stall: "shim.Pids"},
	{name: "hangs in Update", stall: "shim.Update"},
	{name: "hangs in Connect", stall: "shim.Connect"},
	{name: "hangs in Delete", stall: "shim.Delete", removal: "waits"},
	{name: "hangs in its end of a pod", stall: "shim.ShutdownSandbox", removal: "waits"},
}

func signalled(sig syscall.Signal) func(*testing.T, *node.Node, string, int) func() {
	return func(t *testing.T, n *node.Node, _ string, shim int) func() {
		if err := syscall.Kill(shim, sig); err != nil {
			t.Fatal(err)
		}
		if sig != unix.SIGSTOP {
			n.Until("the shim has ended", func() bool { return node.ProcessOver(shim) })
			return func() {}
		}
		n.Until("each thread of the shim is stopped", func() bool { return standsStill(t, shim) })
		return func() { _ = syscall.Kill(shim, unix.SIGCONT) }
	}
}

// limited takes a resource away from a process: it gets no more of it.
func withoutDescriptors(t *testing.T, _ *node.Node, _ string, shim int) func() {
	var before unix.Rlimit
	if err := unix.Prlimit(shim, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(shim, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return func() { _ = unix.Prlimit(shim, unix.RLIMIT_NOFILE, &before, nil) }
}

func losesSocket(t *testing.T, n *node.Node, pod string, _ int) func() {
	var boot struct {
		Address string `json:"address"`
	}
	b, err := os.ReadFile(n.ShimBundle(pod) + "/bootstrap.json")
	if err == nil {
		err = json.Unmarshal(b, &boot)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(strings.TrimPrefix(boot.Address, "unix://")); err != nil {
		t.Fatal(err)
	}
	return func() {}
}

// PROPERTIES 71: a shared shim's fault is its own. For each fault of a shim that three pods share, in
// the berth that has made the pods and in the next one, the ends of its containers are exact and told
// in time, every pod is stopped and removed within its bound, probes are answered and output is
// logged, and the pod of another shim notices nothing. A commit takes one of the faults.
func TestAFaultOfASharedShimIsItsOwn(t *testing.T) {
	for _, fault := range node.Share(t, "faults", 15, nil, shimFaults...) {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			node.Modes(t, func(t *testing.T, external bool) {
				t.Parallel()
				orders(t, func(t *testing.T, between func(n *node.Node)) { fault.test(t, external, between) })
			})
		})
	}
}

func (fault shimFault) test(t *testing.T, external bool, between func(n *node.Node)) {
	o := node.Options{External: external, Dir: node.TempDir(t), Args: []string{"--set", "runtimes.runc.shim_pods=3", "--set", "tricks.cleanup_script=true", "--set", "pod.pause=auto"}}
	libexec := o.Dir + "/f/libexec"
	for _, err := range []error{
		os.MkdirAll(libexec, 0o700),
		os.WriteFile(o.Dir+"/f/shared", nil, 0o600),
		os.Symlink(node.Module(t)+"/build/libexec/berth-exec", libexec+"/berth-exec"),
		os.Symlink(node.Module(t)+"/build/libexec/berth-seccomp", libexec+"/berth-seccomp"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	n, f := start(t, o)
	var pods, ids []string
	for range 4 {
		pod, id := n.Sh("trap 'echo told; exit 42' TERM; echo ready; sleep 1000 & wait")
		ready(n, id)
		pods, ids = append(pods, pod), append(ids, id)
	}
	if got := len(n.Shims()); got != 2 {
		t.Fatalf("four pods have %d shims", got)
	}
	other := len(pods) - 1
	shim := n.ShimOf(pods[0])
	ends := func(i int) {
		t.Helper()
		n.Within(2*time.Second, "from the kill of a process to EXITED", func() node.Span {
			began := time.Now()
			_ = syscall.Kill(n.Pid(ids[i]), syscall.SIGTERM)
			expectExact(t, n, ids[i], 42)
			return node.Span{From: began, To: time.Now()}
		})
		if log := n.Log(ids[i]); !strings.Contains(log, "told") {
			t.Errorf("its last output is not in its log: %q", log)
		}
	}
	probed := func(i int) {
		n.Until("a probe is answered", func() bool {
			r, err := execIn(t, n, ids[i], 5*time.Second)
			return err == nil && r.GetExitCode() == 0 && len(r.GetStdout()) > 0
		})
	}
	removed := func(i int) {
		t.Helper()
		n.Within(20*time.Second, "the removal of a pod", func() node.Span {
			began := time.Now()
			remove(t, n, pods[i])
			return node.Span{From: began, To: time.Now()}
		})
	}
	probed(1)
	between(n)
	var mend func()
	if fault.stall != "" {
		limits := []string{}
		if fault.next != "waits" {
			for i := range other {
				limits = append(limits, "id "+ids[i], "id "+pods[i])
			}
		}
		f.set(fault.stall, "stall", limits...)
		mend = func() { f.clear(fault.stall) }
	} else {
		mend = fault.do(t, n, pods[0], shim)
	}
	defer mend()

	probed(1)
	n.Within(2*time.Second, "the stop of a container", func() node.Span {
		began := time.Now()
		stop(t, n, ids[0])
		expectExact(t, n, ids[0], 42)
		return node.Span{From: began, To: time.Now()}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	switch fault.removal {
	case "waits":
		if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pods[0]}); err != nil {
			t.Errorf("the stop of a pod: %v", err)
		}
		_, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pods[0]})
		t.Log("the removal of a pod:", err)
		if err == nil {
			t.Error("a pod was removed whose shim did not answer")
		}
	default:
		removed(0)
	}
	running(t, n, ids[1], ids[2], ids[other])
	fault.another(t, n, pods[1], shim)
	if fault.stall == "" || fault.next != "waits" {
		n.Within(8*time.Second, "a new pod", func() node.Span {
			began := time.Now()
			if fault.refuses { // and takes no new connection: the first pod that comes learns that
				first, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.PodConfig()})
				t.Log("the first new pod:", err)
				if err == nil { // the container before it has learned that
					remove(t, n, first.GetPodSandboxId())
				}
			}
			pod, id := n.Sh("exit 44")
			node.ExpectExit(t, n.Ended(id), 44, "Error")
			took := node.Span{From: began, To: time.Now()}
			remove(t, n, pod)
			return took
		})
	}

	n.Berth.Kill(syscall.SIGKILL)
	n.StartBerth()
	probed(1)
	ends(1)
	running(t, n, ids[2])
	ends(other)
	removed(other)
	if fault.removal != "waits" {
		removed(1)
	}
	running(t, n, ids[2])
	mend()
	ends(2)
	for i := range other {
		remove(t, n, pods[i])
	}
	n.NoLeaks(t.Context())
}

// another starts another container in a pod whose shim has the fault.
func (fault shimFault) another(t *testing.T, n *node.Node, pod string, shim int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	cfg := podOf(t, n, pod)
	c := node.ContainerConfig("later", "sleep", "1000")
	next := func() error {
		made, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: cfg})
		if err == nil {
			_, err = n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()})
		}
		return err
	}
	err := next()
	// containerd may be about to notice that the shim has ended: the kubelet makes the next attempt.
	for fault.next == "another" && status.Code(err) == codes.Unavailable && ctx.Err() == nil {
		t.Log("an attempt of the next container in the pod:", err)
		c.Metadata.Attempt++
		err = next()
	}
	now := n.ShimOf(pod)
	t.Logf("the next container in the pod: %v", err)
	switch {
	case fault.next == "another" && (err != nil || now == shim):
		t.Errorf("the next container in the pod: %v, shim %d", err, now)
	case fault.next != "" && fault.next != "another" && err == nil:
		t.Error("a container started in a shim that does not answer")
	case fault.next != "" && err != nil && !strings.Contains(err.Error(), "shim group-"):
		t.Errorf("the error does not name the shim: %v", err)
	}
}
