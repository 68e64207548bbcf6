// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/test/node"
)

func versionOf(t *testing.T, on *client.Client) (string, error) {
	t.Helper()
	resp, err := on.Version(t.Context(), &runtimeapi.VersionRequest{})
	return resp.GetRuntimeVersion(), err
}

// PROPERTIES 4, 5 and 23: berth is replaced by another version, and that by the first again, while
// clients call and subscribe without pause. Pods run on, and a container that ends between the two
// has its code and all of its output. A call that is made while no berth is there waits, and is
// answered by the next one. Only calls in flight when berth is killed fail.
func TestAnUpgradeIsNotNoticed(t *testing.T) {
	t.Parallel()
	program := node.Other(t)
	for _, how := range []struct {
		signal   syscall.Signal
		inFlight bool // calls in flight may fail
	}{{syscall.SIGTERM, false}, {syscall.SIGKILL, true}} {
		t.Run(how.signal.String(), func(t *testing.T) {
			t.Parallel()
			n := node.Start(t, node.Options{ServiceManager: true})
			usual, err := versionOf(t, n.Client)
			if err != nil {
				t.Fatal(err)
			}
			_, runs := n.Sh("sleep 1000")
			pid := n.Pid(runs)
			c := &clients{t: t, n: n, container: runs}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			wg.Go(func() { c.subscriber(ctx) })
			for range 2 {
				wg.Go(func() { c.persistent(ctx, how.inFlight) })
				wg.Go(func() { c.fresh(ctx, how.inFlight) })
			}
			for i, next := range []struct{ program, version string }{{program, node.OtherVersion}, {"", usual}, {program, node.OtherVersion}} {
				_, ends := n.Sh(fmt.Sprintf("trap 'echo it ends; exit %d' TERM; echo ready; sleep 1000 & wait", 40+i))
				ready(n, ends)
				process := n.Pid(ends)
				calls := c.calls.Load()
				n.Until("the clients are answered", func() bool { return c.calls.Load() > calls+10 || t.Failed() })

				c.restarts.Add(1)
				c.epoch.Add(1)
				n.Berth.Kill(how.signal)
				c.epoch.Add(1)
				if err := syscall.Kill(process, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				n.Until("the process has ended", func() bool { return errors.Is(syscall.Kill(process, 0), syscall.ESRCH) })
				waiting := node.Dial(t, n.Dir+"/berth.sock")
				answered := make(chan error, 1)
				go func() {
					version, err := versionOf(t, waiting)
					if err == nil && version != next.version {
						err = fmt.Errorf("it was answered by berth %s", version)
					}
					answered <- err
				}()
				n.Program = next.program
				n.StartBerth()
				if err := <-answered; err != nil {
					t.Errorf("a call that was made before berth %s was there: %v", next.version, err)
				}
				_ = waiting.Close()

				expectExact(t, n, ends, int32(40+i))
				n.Until("all of its output is logged", func() bool { return n.Log(ends) == "ready\nit ends\n" })
				events := follow(t, n)
				n.Until("its end is replayed", func() bool { return events.stopped(ends) })
				if st := n.Container(runs); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || n.Pid(runs) != pid {
					t.Errorf("the container whose process was %d is %v", pid, st)
				}
			}
			t.Logf("%d rounds of calls, %d streams ended", c.calls.Load(), c.streams.Load())
		})
	}
}
