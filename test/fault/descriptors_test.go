// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// descriptors are the numbers of the descriptors that a process has open.
func descriptors(t *testing.T, pid int) map[int]bool {
	t.Helper()
	found, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Error(err)
	}
	open := map[int]bool{}
	for _, f := range found {
		if fd, err := strconv.Atoi(f.Name()); err == nil {
			open[fd] = true
		}
	}
	return open
}

// exhaust holds berth at the limit of its descriptors until release is called: it keeps what it has,
// and whatever it opens fails with EMFILE. What it closes is taken from it, too.
func exhaust(t *testing.T, n *node.Node) (release func()) {
	t.Helper()
	pid := n.Berth.Pid()
	var usual unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	tighten := func() {
		free := uint64(0)
		for open := descriptors(t, pid); open[int(free)]; { //nolint:gosec // small
			free++
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: free, Max: usual.Max}, nil); err != nil {
			t.Error(err)
		}
	}
	tighten()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(20 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticks.C:
				tighten()
			}
		}
	}()
	release = sync.OnceFunc(func() {
		close(stop)
		<-done
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &usual, nil); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// PROPERTIES 2, 5 and 10: berth can open nothing for a while, in which containers end, are
// started and stopped, and containerd is killed. Nothing is reported as ended that runs, and nothing
// with a code that is not its own; and once there are descriptors again, everything is as it was
// asked for, and nothing is left.
func TestBerthWithoutDescriptorsInventsNothing(t *testing.T) {
	both(t, quick, func(t *testing.T, n *node.Node, _ *faults) {
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		var containers atomic.Int32
		named := func(command ...string) *runtimeapi.ContainerConfig {
			return node.ContainerConfig(fmt.Sprint("c", containers.Add(1)), command...)
		}
		const stay, ends, begin = 2, 5, 4
		run := func(code int) string { return n.Run(pod, cfg, named("sh", "-c", exitOnTerm(code))) }
		type process struct {
			id   string
			pid  int
			code int32
		}
		watch := func(id string, code int) process {
			ready(n, id)
			return process{id, n.Pid(id), int32(code)} //nolint:gosec // small
		}
		var staying []process
		for i := range stay {
			staying = append(staying, watch(run(10+i), 10+i))
		}
		before := len(descriptors(t, n.Berth.Pid()))

		for round := range times(t, 1) {
			var ending []process
			for i := range ends {
				ending = append(ending, watch(run(20+i), 20+i))
			}
			stopped := watch(run(30), 30)
			eats := named("sh", "-c", "trap 'exec tail /dev/zero' TERM; echo ready; sleep 1000 & wait")
			eats.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
			eater := watch(n.Run(pod, cfg, eats), 137)
			var beginning []string
			for i := range begin {
				beginning = append(beginning, n.Create(pod, cfg, named("sh", "-c", fmt.Sprint("exit ", 40+i))))
			}

			release := exhaust(t, n)
			var wg sync.WaitGroup
			for _, id := range beginning {
				wg.Go(func() {
					// It fails, or not: berth may have a descriptor after all, that of what has ended.
					_, _ = n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
				})
			}
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, _ = n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: stopped.id, Timeout: 100})
			})
			honest := func() {
				t.Helper()
				for _, p := range append(append([]process{stopped}, staying...), ending...) {
					st := n.Container(p.id)
					switch st.GetState() {
					case runtimeapi.ContainerState_CONTAINER_RUNNING:
					case runtimeapi.ContainerState_CONTAINER_EXITED:
						if st.GetExitCode() != p.code || syscall.Kill(p.pid, 0) == nil {
							t.Fatalf("round %d: process %d, which ends with %d: %v\n%s", round, p.pid, p.code, st, timeline(t, n, p.id))
						}
					default:
						t.Fatalf("round %d: %v", round, st)
					}
				}
			}
			for _, p := range append([]process{eater}, ending...) {
				if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				n.Until("the process has ended", func() bool { honest(); return syscall.Kill(p.pid, 0) != nil })
			}
			if n.Containerd != nil {
				n.Containerd.Kill(syscall.SIGKILL)
				n.StartContainerd()
			}
			for range 100 { // the witnesses are asked again meanwhile
				honest()
				time.Sleep(20 * time.Millisecond)
			}
			release()
			wg.Wait()

			n.Until("berth is connected", n.Connected)
			for _, p := range ending {
				node.ExpectExit(t, n.Ended(p.id), p.code, "Error")
			}
			node.ExpectExit(t, n.Ended(eater.id), 137, "OOMKilled")
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: stopped.id, Timeout: 100}); err != nil {
				t.Error(err)
			}
			node.ExpectExit(t, n.Ended(stopped.id), stopped.code, "Error")
			for i, id := range beginning {
				n.Until("it has been started", func() bool {
					if n.Container(id).GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
						return true
					}
					_, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
					return err == nil
				})
				if st := n.Ended(id); st.GetExitCode() != 128 || st.GetReason() != "StartError" {
					node.ExpectExit(t, st, int32(40+i), "Error") //nolint:gosec // small
				}
			}
			for _, p := range staying {
				if st := n.Container(p.id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || n.Pid(p.id) != p.pid {
					t.Errorf("what runs as process %d is %v", p.pid, st)
				}
			}
			_, after := n.Sh("exit 50")
			node.ExpectExit(t, n.Ended(after), 50, "Error")
			for _, id := range append(append([]string{}, beginning...), stopped.id, eater.id) {
				if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
					t.Error(err)
				}
			}
			for _, p := range ending {
				if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: p.id}); err != nil {
					t.Error(err)
				}
			}
			n.RemoveAll(t.Context(), pod)
			if t.Failed() {
				t.FailNow()
			}
		}
		for _, p := range staying {
			if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			node.ExpectExit(t, n.Ended(p.id), p.code, "Error")
		}
		const slack = 5 // connections come and go
		n.Until("berth has given its descriptors back", func() bool { return len(descriptors(t, n.Berth.Pid())) <= before+slack })
	})
}
