// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// PROPERTIES 17: shims that hang (SIGSTOP) while berth is killed and comes back. One with seven
// tasks kept it from being ready for 28 s. Everything is said as it was, a pod whose shim does not
// hang goes on as if nothing had been, and once the shims go on, all of it can be removed. One that
// is killed instead takes its containers with it.
func TestBerthIsReadyBesideHungShims(t *testing.T) {
	both(t, nil, func(t *testing.T, n *node.Node, _ *faults) {
		hung := map[string][]string{} // by pod
		for range 2 {
			cfg := n.PodConfig()
			pod := n.Pod(cfg)
			for c := range 7 {
				hung[pod] = append(hung[pod], n.Run(pod, cfg, node.ContainerConfig(fmt.Sprint("c", c), "sleep", "1000")))
			}
		}
		_, ends := n.Sh(exitOnTerm(42))
		ready(n, ends)
		signal := func(sig syscall.Signal) {
			t.Helper()
			for pod, pid := range n.Shims() {
				if hung[pod] == nil {
					continue
				}
				if err := syscall.Kill(pid, sig); err != nil {
					t.Fatal(err)
				}
			}
		}
		signal(syscall.SIGSTOP)
		defer signal(syscall.SIGCONT)
		n.Within(5*time.Second, "the start of berth beside two shims that hang", func() node.Span {
			n.Berth.Kill(syscall.SIGKILL)
			began := time.Now()
			n.StartBerth()
			return node.Span{From: began, To: time.Now()}
		})
		for _, ids := range hung {
			for _, id := range ids {
				if st := n.Container(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
					t.Fatalf("a container whose shim hangs is reported as %v", st)
				}
			}
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: ends, Timeout: 100}); err != nil {
			t.Fatal(err)
		}
		expectExact(t, n, ends, 42)
		for pod, ids := range hung {
			if err := syscall.Kill(n.Shims()[pod], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				n.Ended(id)
			}
			break
		}
		signal(syscall.SIGCONT)
		n.RemoveAll(t.Context())
	})
}
