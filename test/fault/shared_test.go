// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// sharing starts a node whose pods share shims, three each. The shims are not faulty: what happens
// to them is done by signals, in both orders: see [orders]. An ExecSync goes by way of the shim, as
// Exec does.
func sharing(t *testing.T, test func(t *testing.T, n *node.Node, between func())) {
	t.Helper()
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		t.Parallel()
		args := append([]string{"--set", "runtimes.runc.shim_pods=3", "--set", "tricks.cleanup_script=true", "--set", "runtimes.runc.exec=oci"}, withoutPause...)
		orders(t, func(t *testing.T, between func(n *node.Node)) {
			n := node.Start(t, node.Options{External: external, Args: args})
			test(t, n, func() { between(n) })
		})
	})
}

// onlyShim is the process of the one shim that there is.
func onlyShim(t *testing.T, n *node.Node) int {
	t.Helper()
	shims := n.Shims()
	if len(shims) != 1 {
		t.Fatalf("there is not one shim: %v", shims)
	}
	for _, pid := range shims {
		return pid
	}
	return 0
}

// threePods makes three pods with a container each that ends with 42 at SIGTERM. They share a shim.
func threePods(t *testing.T, n *node.Node) (pods, ids []string, shim int) {
	t.Helper()
	for range 3 {
		pod, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		pods, ids = append(pods, pod), append(ids, id)
	}
	return pods, ids, onlyShim(t, n)
}

func execIn(t *testing.T, n *node.Node, id string, within time.Duration) (*runtimeapi.ExecSyncResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"cat", "/etc/passwd"}})
}

func running(t *testing.T, n *node.Node, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Fatalf("%s is %v, %d %s %s", id, st.GetState(), st.GetExitCode(), st.GetReason(), st.GetMessage())
		}
	}
}

func stop(t *testing.T, n *node.Node, id string) {
	t.Helper()
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 100}); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, n *node.Node, pod string) {
	t.Helper()
	if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
}

// PROPERTIES 6: pods that share a shim come and go. The one that the shim was started for goes first,
// another one takes its place, and the shim ends with the last.
func TestASharedShimServesUntilItsLastPodGoes(t *testing.T) {
	sharing(t, func(t *testing.T, n *node.Node, between func()) {
		pods, ids, shim := threePods(t, n)
		between()
		remove(t, n, pods[0])
		if got := onlyShim(t, n); got != shim {
			t.Errorf("the shim is %d and not %d", got, shim)
		}
		if r, err := execIn(t, n, ids[1], time.Minute); err != nil || r.GetExitCode() != 0 {
			t.Errorf("%v %v", r, err)
		}
		next, id := n.Sh(exitOnTerm(42))
		ready(n, id)
		if got := onlyShim(t, n); got != shim {
			t.Errorf("the shim is %d and not %d", got, shim)
		}
		another, _ := n.Sh("exec sleep 1000")
		if got := len(n.Shims()); got != 2 {
			t.Errorf("there are %d shims of four pods", got)
		}
		// The next berth knows the groups from the records.
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		stop(t, n, ids[1])
		node.ExpectExit(t, n.Ended(ids[1]), 42, "Error")
		for _, pod := range []string{another, pods[1], pods[2]} {
			remove(t, n, pod)
		}
		if got := onlyShim(t, n); got != shim {
			t.Errorf("the shim is %d and not %d", got, shim)
		}
		stop(t, n, id)
		node.ExpectExit(t, n.Ended(id), 42, "Error")
		remove(t, n, next)
		n.NoLeaks(t.Context())
	})
}

// executing reports whether an exec of sleep 4242 runs in the pods of the node.
func executing(n *node.Node) bool {
	return slices.ContainsFunc(n.Processes(), func(p string) bool { return strings.Contains(p, "4242") })
}

// answered reports whether the start of the one exec in a container was answered. berth then closes
// its own writing ends of what the exec writes to, after it has noted which process that is.
func answered(n *node.Node, id string) bool {
	reads, writes := 0, 0
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", n.Berth.Pid()))
	for _, fd := range fds {
		path, err := os.Readlink(fd)
		if err != nil || !strings.Contains(path, "/exec/"+id+".") {
			continue
		}
		info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", n.Berth.Pid(), filepath.Base(fd)))
		_, flags, _ := strings.Cut(string(info), "flags:\t")
		flags, _, _ = strings.Cut(flags, "\n")
		if mode, err := strconv.ParseInt(flags, 8, 64); err == nil && mode&unix.O_ACCMODE == unix.O_RDONLY {
			reads++
		} else {
			writes++
		}
	}
	return reads > 0 && writes == 0
}

// PROPERTIES 1, 5, 29, 31 and 71: a shim that three pods share is killed, or crashes as by a panic. The pods go
// on, also when berth is killed and containerd starts anew; their ends are exact; a stop and a
// removal need no shim; an exec that runs is ended, and the next one is refused and says why. The
// next container starts another shim for its pod, and a new pod joins neither.
func TestPodsOutliveTheShimThatTheyShare(t *testing.T) {
	sharing(t, func(t *testing.T, n *node.Node, between func()) {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGABRT} {
			pods, ids, shim := threePods(t, n)
			between()
			executed := make(chan error, 1)
			go func() {
				_, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: ids[0], Cmd: []string{"sleep", "4242"}})
				executed <- err
			}()
			n.Until("the exec runs", func() bool { return executing(n) })
			n.Until("berth knows which process it is", func() bool { return answered(n, ids[0]) })
			if err := syscall.Kill(shim, sig); err != nil {
				t.Fatal(err)
			}
			if err := <-executed; err == nil {
				t.Error("an exec was answered whose shim had died")
			}
			n.Until("its process was ended", func() bool { return !executing(n) })
			cleanedUp(n, ids...)
			running(t, n, ids...)
			for _, id := range ids {
				// Its root file system is there.
				if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/passwd", n.Pid(id))); err != nil || len(b) == 0 {
					t.Errorf("%q %v", b, err)
				}
				if r, err := execIn(t, n, id, time.Minute); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has died") {
					t.Errorf("an exec without a shim: %v %v", r, err)
				}
			}
			n.Berth.Kill(syscall.SIGKILL)
			n.StartBerth()
			running(t, n, ids...)
			stop(t, n, ids[0])
			expectExact(t, n, ids[0], 42)
			n.Within(2*time.Second, "from the kill of a process without a shim to EXITED", func() node.Span {
				_ = syscall.Kill(n.Pid(ids[1]), syscall.SIGTERM)
				began := time.Now()
				expectExact(t, n, ids[1], 42)
				return node.Span{From: began, To: time.Now()}
			})
			later := n.Run(pods[1], podOf(t, n, pods[1]), node.ContainerConfig("later", "sh", "-c", "exit 43"))
			node.ExpectExit(t, n.Ended(later), 43, "Error")
			revived := onlyShim(t, n)
			other, id := n.Sh("exit 44")
			node.ExpectExit(t, n.Ended(id), 44, "Error")
			remove(t, n, other)
			remove(t, n, pods[0])
			running(t, n, ids[2])
			if got := onlyShim(t, n); got != revived {
				t.Errorf("the shim is %d and not %d", got, revived)
			}
			remove(t, n, pods[1])
			running(t, n, ids[2])
			remove(t, n, pods[2])
			n.NoLeaks(t.Context())
		}
	})
}

// PROPERTIES 50: after any restart of berth the death of a shim ended all pods that shared it, since a
// containerd inside berth cleaned up after them by the program of the sandbox and not of the
// container. One beside berth is started again, too.
func TestPodsOutliveTheShimThatTheyShareAfterARestart(t *testing.T) {
	sharing(t, func(t *testing.T, n *node.Node, between func()) {
		var pods, ids []string
		for _, code := range []int{50, 51, 52} {
			pod, id := n.Sh(exitOnTerm(code))
			ready(n, id)
			pods, ids = append(pods, pod), append(ids, id)
		}
		between()
		n.Berth.Kill(syscall.SIGTERM)
		if n.Containerd != nil {
			n.Containerd.Kill(syscall.SIGKILL)
			n.StartContainerd()
		}
		n.StartBerth()
		if err := syscall.Kill(onlyShim(t, n), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		cleanedUp(n, ids...)
		running(t, n, ids...)
		for i, id := range ids {
			stop(t, n, id)
			expectExact(t, n, id, int32(50+i))
			remove(t, n, pods[i])
		}
		n.NoLeaks(t.Context())
	})
}

// cleanedUp waits until containerd has cleaned up after the shim of containers that has died.
func cleanedUp(n *node.Node, ids ...string) {
	n.Until("containerd has cleaned up", func() bool {
		for _, id := range ids {
			if _, err := os.Stat(n.Bundle(id)); !errors.Is(err, fs.ErrNotExist) {
				return false
			}
		}
		return true
	})
}

// The shim is killed while berth is away, and with it the containerd inside, which then finds the
// tasks of three pods without a shim.
func TestPodsOutliveTheShimThatDiesWhileBerthIsAway(t *testing.T) {
	sharing(t, func(t *testing.T, n *node.Node, between func()) {
		pods, ids, shim := threePods(t, n)
		between()
		n.Berth.Kill(syscall.SIGKILL)
		if n.Containerd != nil {
			n.Containerd.Kill(syscall.SIGKILL)
		}
		if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if n.Containerd != nil {
			n.StartContainerd()
		}
		n.StartBerth()
		running(t, n, ids...)
		stop(t, n, ids[0])
		expectExact(t, n, ids[0], 42)
		running(t, n, ids[1], ids[2])
		for _, pod := range pods {
			remove(t, n, pod)
		}
		n.NoLeaks(t.Context())
	})
}

// PROPERTIES 1, 3, 17 and 71: a shim that three pods share hangs. Their ends are settled, a stop needs no
// shim, an exec is refused within its time, a new pod gets another shim, and berth is ready when it
// starts. Once the shim goes on, everything is released.
func TestASharedShimThatHangsDelaysNoTruth(t *testing.T) {
	sharing(t, func(t *testing.T, n *node.Node, between func()) {
		pods, ids, shim := threePods(t, n)
		between()
		remove(t, n, pods[0]) // there is room
		if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(shim, syscall.SIGCONT) }()
		// It would answer for a moment yet, and a pod that joins it then waits as long as it hangs.
		n.Until("each thread of the shim is stopped", func() bool { return standsStill(t, shim) })
		n.Within(5*time.Second, "a pod beside a shim that hangs", func() node.Span {
			began := time.Now()
			pod, id := n.Sh("exit 44")
			node.ExpectExit(t, n.Ended(id), 44, "Error")
			took := node.Span{From: began, To: time.Now()}
			remove(t, n, pod)
			return took
		})
		if r, err := execIn(t, n, ids[1], 3*time.Second); err == nil {
			t.Errorf("an exec in a shim that hangs: %v", r)
		} else {
			t.Log(err)
		}
		n.Within(2*time.Second, "from the kill of a process to EXITED", func() node.Span {
			began := time.Now()
			stop(t, n, ids[1])
			expectExact(t, n, ids[1], 42)
			return node.Span{From: began, To: time.Now()}
		})
		n.Within(2*time.Second, "the stop of a pod whose shim hangs", func() node.Span {
			began := time.Now()
			if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pods[1]}); err != nil {
				t.Fatal(err)
			}
			return node.Span{From: began, To: time.Now()}
		})
		n.Within(5*time.Second, "the start of berth beside a shim that hangs", func() node.Span {
			n.Berth.Kill(syscall.SIGKILL)
			began := time.Now()
			n.StartBerth()
			return node.Span{From: began, To: time.Now()}
		})
		running(t, n, ids[2])
		if err := syscall.Kill(shim, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		stop(t, n, ids[2])
		expectExact(t, n, ids[2], 42)
		remove(t, n, pods[1])
		remove(t, n, pods[2])
		n.NoLeaks(t.Context())
	})
}

// PROPERTIES 45: a probe needs no shim, as berth ships. It is answered while the shim hangs, and after
// the shim has died, where its pod shared it with others.
func TestAProbeNeedsNoShim(t *testing.T) {
	t.Parallel()
	orders(t, aProbeNeedsNoShim)
}

func aProbeNeedsNoShim(t *testing.T, between func(n *node.Node)) {
	n := node.Start(t, node.Options{Args: append([]string{"--set", "runtimes.runc.shim_pods=3", "--set", "tricks.cleanup_script=true"}, withoutPause...)})
	pods, ids, shim := threePods(t, n)
	between(n)
	answered := func() bool {
		r, err := execIn(t, n, ids[0], 5*time.Second)
		return err == nil && r.GetExitCode() == 0 && len(r.GetStdout()) > 0
	}
	n.Until("berth knows which OCI runtime it is", answered)
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.Until("each thread of the shim is stopped", func() bool { return standsStill(t, shim) })
	n.Until("a probe is answered while the shim hangs", answered)
	if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.Until("the shim has died", func() bool { return len(n.Shims()) == 0 })
	n.Until("a probe is answered without a shim", answered)
	for _, pod := range pods {
		remove(t, n, pod)
	}
	n.NoLeaks(t.Context())
}

// standsStill reports whether no thread of a process runs. One that ends meanwhile has run.
func standsStill(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("process %d: %v %v", pid, stats, err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return true
}

// A pod keeps the shim that it was made with when the setting changes: those of before have one
// each, and those that share one stay together.
func TestTheNumberOfPodsInAShimMayBeChanged(t *testing.T) {
	t.Parallel()
	n := node.Start(t, node.Options{Args: append([]string{"--set", "tricks.cleanup_script=true"}, withoutPause...)})
	change := func(most int) {
		t.Helper()
		text := fmt.Sprintf("[runtimes.runc]\ntype = 'io.containerd.runc.v2'\nhost_process = true\nshim_pods = %d\n", most)
		if err := os.WriteFile(n.Dir+"/config.toml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n.Berth.Kill(syscall.SIGTERM)
		n.StartBerth()
	}
	var pods, ids []string
	more := func(count, shims int) {
		t.Helper()
		for range count {
			pod, id := n.Sh(exitOnTerm(42))
			ready(n, id)
			pods, ids = append(pods, pod), append(ids, id)
		}
		if got := len(n.Shims()); got != shims {
			t.Errorf("%d pods have %d shims, not %d", len(pods), got, shims)
		}
	}
	change(1)
	more(2, 2)
	change(3)
	more(3, 3)
	change(1)
	more(1, 4)
	for i, id := range ids {
		stop(t, n, id)
		node.ExpectExit(t, n.Ended(id), 42, "Error")
		remove(t, n, pods[i])
	}
	n.NoLeaks(t.Context())
}
