// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// subscriber collects events.
type subscriber struct {
	mu  sync.Mutex
	got []*runtimeapi.ContainerEventResponse
}

// follow subscribes until the test ends, or berth does.
func follow(t *testing.T, n *node.Node) *subscriber {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	events, done := &subscriber{}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			events.mu.Lock()
			events.got = append(events.got, ev)
			events.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return events
}

func (o *subscriber) all() []*runtimeapi.ContainerEventResponse {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]*runtimeapi.ContainerEventResponse(nil), o.got...)
}

func (o *subscriber) stopped(id string) bool {
	for _, ev := range o.all() {
		if ev.GetContainerId() == id && ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			return true
		}
	}
	return false
}

// churn runs containers that end at once, several at a time, and returns their codes by ID.
func churn(t *testing.T, n *node.Node, pods, each int, remove bool) map[string]int32 {
	t.Helper()
	var mu sync.Mutex
	codes := map[string]int32{}
	var wg sync.WaitGroup
	for range pods {
		wg.Go(func() {
			cfg := n.PodConfig()
			resp, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
			if err != nil {
				t.Error(err)
				return
			}
			pod := resp.GetPodSandboxId()
			for i := range each {
				code := int32(i%200 + 1)
				c := node.ContainerConfig(fmt.Sprint("c", i), "sh", "-c", fmt.Sprint("exit ", code))
				made, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: c})
				if err != nil {
					t.Error(err)
					return
				}
				id := made.GetContainerId()
				if _, err := n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				codes[id] = code
				mu.Unlock()
				if remove {
					n.Ended(id)
					if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
						t.Error(err)
					}
				}
			}
			if remove {
				if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return codes
}

// final is the last published state of each container: its code once it stopped, -1 before.
func final(events []*runtimeapi.ContainerEventResponse) map[string]int32 {
	last := map[string]int32{}
	for _, ev := range events {
		for _, c := range ev.GetContainersStatuses() {
			last[c.GetId()] = -1
			if c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
				last[c.GetId()] = c.GetExitCode()
			}
		}
	}
	return last
}

// PROPERTIES 9: of many short containers each has CREATED, STARTED, STOPPED and DELETED once and in
// this order; stamps rise strictly within a pod; and an event carries the pod as it was when it was
// stamped, or later, never earlier.
func TestEventsOfManyShortContainersAreInOrder(t *testing.T) {
	t.Parallel()
	n, _ := start(t, node.Options{})
	events := follow(t, n)
	codes := churn(t, n, 4, times(t, 15), true)
	deleted := func() int {
		k := 0
		for _, ev := range events.all() {
			if _, ours := codes[ev.GetContainerId()]; ours && ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
				k++
			}
		}
		return k
	}
	n.Until("every removal is published", func() bool { return deleted() == len(codes) })
	stamps, next := map[string]int64{}, map[string]runtimeapi.ContainerEventType{}
	for _, ev := range events.all() {
		pod, id := ev.GetPodSandboxStatus().GetId(), ev.GetContainerId()
		if ev.GetCreatedAt() <= stamps[pod] {
			t.Errorf("pod %s: stamp %d after %d", pod, ev.GetCreatedAt(), stamps[pod])
		}
		stamps[pod] = ev.GetCreatedAt()
		code, ours := codes[id]
		if !ours {
			continue // the pod's own
		}
		if ev.GetContainerEventType() != next[id] {
			t.Errorf("container %s: %v where %v was due", id, ev.GetContainerEventType(), next[id])
		}
		next[id] = ev.GetContainerEventType() + 1
		for _, c := range ev.GetContainersStatuses() {
			if c.GetId() != id {
				continue
			}
			switch ev.GetContainerEventType() {
			case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
				if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || c.GetExitCode() != code || c.GetFinishedAt() > ev.GetCreatedAt() {
					t.Errorf("STOPPED at %d carries %v, want code %d", ev.GetCreatedAt(), c, code)
				}
			case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
				t.Errorf("DELETED carries %v", c)
			}
		}
	}
}

// PROPERTIES 7: a subscriber stops reading. Others get everything, calls are served, what is kept
// for it is bounded; and when it reads again it gets the present state of everything.
func TestASubscriberThatDoesNotReadHarmsNobody(t *testing.T) {
	t.Parallel()
	address := freePort(t)
	n, _ := start(t, node.Options{Args: []string{"--metrics", address}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stalled, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	events := follow(t, n)
	n.Until("both are there", func() bool { return metric(t, address, "berth_feed_subscribers") == 2 })
	codes := churn(t, n, 3, times(t, 15), false)
	for id := range codes {
		n.Until("the one that reads gets the end of "+id, func() bool { return events.stopped(id) })
	}
	if queued := metric(t, address, "berth_feed_queued"); queued == 0 {
		t.Error("nothing waits: it is not stalled, and this shows nothing")
	} else {
		t.Logf("%g events wait, %g were coalesced", queued, metric(t, address, "berth_feed_coalesced"))
	}
	var got []*runtimeapi.ContainerEventResponse
	missing := func() (missing []string) {
		last := final(got)
		for id, code := range codes {
			if last[id] != code {
				missing = append(missing, id)
			}
		}
		return missing
	}
	for len(missing()) > 0 {
		ev, err := stalled.Recv()
		if err != nil {
			t.Fatalf("%v; missing: %v", err, missing())
		}
		got = append(got, ev)
	}
}

// PROPERTIES 8: nobody listens during many exits and a kill -9: a subscriber that comes back gets
// every one of them.
func TestASubscriberThatComesBackReceivesEveryExit(t *testing.T) {
	both(t, nil, func(t *testing.T, n *node.Node, _ *faults) {
		codes := churn(t, n, 3, times(t, 15), false)
		n.Berth.Kill(syscall.SIGKILL)
		n.StartBerth()
		for id, code := range churn(t, n, 3, times(t, 5), false) {
			codes[id] = code
		}
		for id := range codes {
			n.Ended(id)
		}
		events := follow(t, n)
		for id, code := range codes {
			n.Until("the end of "+id+" is published", func() bool { return events.stopped(id) })
			if got := final(events.all())[id]; got != code {
				t.Errorf("%s ended with %d, published as %d", id, code, got)
			}
		}
	})
}

// PROPERTIES 12: once everything is removed, nothing of it is left in berth: no goroutine, no
// descriptor, no queue.
func TestNothingIsLeftInBerthOfWhatIsRemoved(t *testing.T) {
	t.Parallel()
	address := freePort(t)
	n, _ := start(t, node.Options{Args: []string{"--metrics", address}})
	usage := func() (goroutines, descriptors float64) {
		return metric(t, address, "go_goroutines"), metric(t, address, "process_open_fds")
	}
	churn(t, n, 2, 2, true) // what is made once and kept
	n.Until("all is quiet", func() bool { return metric(t, address, "berth_lanes_waiting") == 0 })
	goroutines, descriptors := usage()
	churn(t, n, 3, times(t, 15), true)
	const slack = 5 // connections come and go
	var g, d float64
	for range 1000 {
		if g, d = usage(); g <= goroutines+slack && d <= descriptors+slack {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("from %g to %g goroutines, from %g to %g descriptors", goroutines, g, descriptors, d)
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// metric is the value of a metric without labels.
func metric(t *testing.T, address, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		if text, ok := strings.CutPrefix(sc.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
