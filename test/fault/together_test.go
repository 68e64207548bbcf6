// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 3, 6 and 71: sixty containers of one shim ended at once and were EXITED in a tenth of a
// second, and their removal took half a minute. Each was deleted in the moment between the shim's
// answer and its publication of the end, which the deletion held up; meanwhile no end of another
// container was looked at, and the shim's reaper waited for a second with each.
func TestSixtyContainersOfOneShimThatEndAtOnceAreRemoved(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		t.Parallel()
		args := append([]string{"--set", "runtimes.runc.shim_pods=10", "--set", "tricks.cleanup_script=true"}, withoutPause...)
		n := node.Start(t, node.Options{External: external, Args: args})
		n.Within(8*time.Second, "from the kill of sixty processes of one shim to their removal", func() node.Span {
			const pods, each = 10, 6
			var mu sync.Mutex
			var made []string
			var ids []string
			var making sync.WaitGroup
			for range pods {
				cfg := n.PodConfig()
				pod := n.Pod(cfg)
				made = append(made, pod)
				making.Go(func() {
					for i := range each {
						id := n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("c", i), "sleep", "1000"))
						mu.Lock()
						ids = append(ids, id)
						mu.Unlock()
					}
				})
			}
			making.Wait()
			if t.Failed() {
				t.FailNow()
			}
			onlyShim(t, n)
			pids := make([]int, len(ids))
			for i, id := range ids {
				pids[i] = n.Pid(id)
			}
			began := time.Now()
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			for _, id := range ids {
				node.ExpectExit(t, n.Ended(id), 137, "Error")
			}
			t.Log("all are EXITED after", time.Since(began))
			var removing sync.WaitGroup
			for _, id := range ids {
				removing.Go(func() {
					if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
						t.Error(err)
					}
				})
			}
			removing.Wait()
			took := node.Span{From: began, To: time.Now()}
			for _, pod := range made {
				remove(t, n, pod)
			}
			return took
		})
		n.NoLeaks(t.Context())
	})
}

// PROPERTIES 3 and 6: a container in the host's PID namespace left 150 processes, and its shim stood still
// for two minutes, for the other containers of the shim as well: it handed the end of the OCI
// runtime that it had started to kill them, which it waited for, on behind all of theirs, one in a
// second.
func TestProcessesThatAContainerLeavesDoNotHoldUpItsShim(t *testing.T) {
	t.Parallel()
	node.Modes(t, func(t *testing.T, external bool) {
		t.Parallel()
		args := append([]string{"--set", "runtimes.runc.shim_pods=2", "--set", "tricks.cleanup_script=true"}, withoutPause...)
		n := node.Start(t, node.Options{External: external, Args: args})
		n.Within(8*time.Second, "from the end of a container that leaves 150 processes to its removal, and that of another one in its shim", func() node.Span {
			cfg := n.PodConfig()
			cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
			left := n.Pod(cfg)
			leaves := node.ContainerConfig("c", "sh", "-c", "i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i+1)); done; echo ready; exec sleep 1000")
			leaves.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
			id := n.Run(left, cfg, leaves)
			ready(n, id)
			other, neighbour := n.Sh(exitOnTerm(42))
			ready(n, neighbour)
			onlyShim(t, n)
			began := time.Now()
			_ = syscall.Kill(n.Pid(id), syscall.SIGKILL)
			node.ExpectExit(t, n.Ended(id), 137, "Error")
			stop(t, n, neighbour)
			expectExact(t, n, neighbour, 42)
			remove(t, n, other)
			remove(t, n, left)
			return node.Span{From: began, To: time.Now()}
		})
		n.NoLeaks(t.Context())
	})
}
