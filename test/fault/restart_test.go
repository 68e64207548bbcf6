// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
	"berth/test/node"
)

// clients call and subscribe without pause, and judge what fails while berth is restarted.
type clients struct {
	t         *testing.T
	n         *node.Node
	container string

	restarts atomic.Int64 // how often berth was ended
	epoch    atomic.Int64 // odd while berth is being ended
	calls    atomic.Int64
	streams  atomic.Int64 // subscriptions that ended
}

// call is one round of what a kubelet asks for.
func (c *clients) call(ctx context.Context, on *client.Client) error {
	if _, err := on.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	st, err := on.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.container})
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if st.GetStatus().GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return fmt.Errorf("the container is %s", st.GetStatus().GetState())
	}
	c.calls.Add(1)
	return nil
}

// persistent keeps one connection, as the kubelet does. For each restart one of its calls may fail
// if inFlight is set, since it makes one after the other.
func (c *clients) persistent(ctx context.Context, inFlight bool) {
	on, err := client.Dial(c.n.Dir + "/berth.sock")
	if err != nil {
		c.t.Error(err)
		return
	}
	defer on.Close()
	var failed int64
	for ctx.Err() == nil {
		err := c.call(ctx, on)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if failed++; !inFlight || failed > c.restarts.Load() {
			c.t.Errorf("%d calls failed in %d restarts, the last one: %v", failed, c.restarts.Load(), err)
			return
		}
	}
}

// fresh makes a connection for each round. If inFlight is set, a round that was in flight while
// berth ended may fail.
func (c *clients) fresh(ctx context.Context, inFlight bool) {
	for ctx.Err() == nil {
		before := c.epoch.Load()
		on, err := client.Dial(c.n.Dir + "/berth.sock")
		if err == nil {
			err = c.call(ctx, on)
			_ = on.Close()
		}
		if err != nil && ctx.Err() == nil && (!inFlight || before%2 == 0 && c.epoch.Load() == before) {
			c.t.Errorf("a call on a new connection failed: %v", err)
			return
		}
	}
}

// subscriber does what the kubelet's evented PLEG does, which gives up after five failures: it
// subscribes again at once. Each restart may cost it one stream and not a single further try.
func (c *clients) subscriber(ctx context.Context) {
	on, err := client.Dial(c.n.Dir + "/berth.sock")
	if err != nil {
		c.t.Error(err)
		return
	}
	defer on.Close()
	for ctx.Err() == nil {
		stream, err := on.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		for err == nil {
			_, err = stream.Recv()
		}
		if ctx.Err() != nil {
			return
		}
		if n := c.streams.Add(1); n > c.restarts.Load() {
			c.t.Errorf("the subscriber was refused: %d failures in %d restarts, the last one: %v", n, c.restarts.Load(), err)
			return
		}
	}
}

// Every restart of berth failed calls and burnt several of the five tries that the kubelet has for
// its event stream. With a service manager that keeps the socket, only calls in flight when berth
// is killed fail; when it is asked to stop, not even those.
func TestNobodyNoticesARestart(t *testing.T) {
	t.Parallel()
	for _, how := range []struct {
		signal   syscall.Signal
		inFlight bool // calls in flight may fail
		times    int
	}{{syscall.SIGKILL, true, 20}, {syscall.SIGTERM, false, 5}} {
		t.Run(how.signal.String(), func(t *testing.T) {
			t.Parallel()
			n := node.Start(t, node.Options{ServiceManager: true})
			_, id := n.Sh("sleep 1000")
			c := &clients{t: t, n: n, container: id}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { c.subscriber(ctx) })
			for range 2 {
				wg.Go(func() { c.persistent(ctx, how.inFlight) })
				wg.Go(func() { c.fresh(ctx, how.inFlight) })
			}
			for range times(t, how.times) {
				calls := c.calls.Load()
				n.Until("the clients are answered", func() bool { return c.calls.Load() > calls+10 || t.Failed() })
				if t.Failed() {
					break
				}
				c.restarts.Add(1)
				c.epoch.Add(1)
				n.Berth.Kill(how.signal)
				c.epoch.Add(1)
				n.StartBerth()
			}
			cancel()
			wg.Wait()
			t.Logf("%d restarts, %d rounds of calls, %d streams ended", c.restarts.Load(), c.calls.Load(), c.streams.Load())
		})
	}
}
