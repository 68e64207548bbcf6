// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// The calls of each simulated kubelet, and their periods, which are the kubelet's own (its generic
// PLEG, its runtime state, its statistics and its image manager), except for the probes. The cost
// of a program in a container is that of the OCI runtime for every client, and hundreds a second
// would measure nothing else.
const (
	relistEvery = time.Second
	statusEvery = 5 * time.Second
	statsEvery  = 10 * time.Second
	imagesEvery = 30 * time.Second
	probeEvery  = 100 * time.Second

	kubeletsWindow = time.Minute
	kubeletsExits  = 20 // containers that end meanwhile, one a second
)

// runKubelets measures how both daemons, or the one whose name contains b.only, bear the calls of
// many kubelets at the same time.
func (b *bench) runKubelets(ctx context.Context, kubelets, pods int) error {
	call := step{"kubelets", func(ctx context.Context, n *node, rec record) error { return n.kubelets(ctx, kubelets, pods, rec) }, false}
	return b.onOneNode(ctx, "kubelets", fmt.Sprintf("/kubelets=%d/pods=%d", kubelets, pods), call)
}

// kubelets makes the pods and lets so many kubelets talk to the daemon for a minute, while
// containers end. Failed calls are counted and reported.
func (n *node) kubelets(ctx context.Context, count, pods int, rec record) error {
	running, err := n.more(ctx, pods)
	if err != nil {
		return err
	}
	if err := n.weigh("Memory/before", false, rec); err != nil {
		return err
	}
	all := &calls{took: map[string][]float64{}, failed: map[string]int{}}
	talk, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i := range count {
		c, err := client.Dial(n.socket)
		if err != nil {
			return err
		}
		k := &kubelet{
			Client: c,
			calls:  all,
			events: i%2 == 1, // the others relist every second
			probed: running[len(running)-1-i%(len(running)/2)].id,
			// Kubelets are not started at the same instant.
			late: time.Duration(i) * probeEvery / time.Duration(count),
		}
		wg.Go(func() {
			k.run(talk)
			_ = c.Close()
		})
	}
	err = n.share(rec, "Processor", func() error {
		until := time.Now().Add(kubeletsWindow)
		if err := n.exitsOneByOne(ctx, running[:min(kubeletsExits, len(running)/2)], rec); err != nil && ctx.Err() == nil {
			// the results of the calls are of interest all the more
			rec.printf("# no further container is killed: %v\n", err)
		}
		return pause(ctx, time.Until(until))
	})
	if err != nil {
		return err
	}
	if err := n.weigh("Memory/during", false, rec); err != nil {
		return err
	}
	cancel()
	wg.Wait()
	all.write(rec)
	return n.weigh("Memory/after", false, rec)
}

// calls counts the calls of the kubelets.
type calls struct {
	mu     sync.Mutex
	took   map[string][]float64 // milliseconds by method
	failed map[string]int
	first  error
}

// do carries out a call, unless ctx has ended.
func (c *calls) do(ctx context.Context, method string, call func() error) {
	if ctx.Err() != nil {
		return
	}
	began := time.Now()
	err := call()
	took := time.Since(began)
	if ctx.Err() != nil { // cut off by the end of the measurement
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took[method] = append(c.took[method], float64(took)/1e6)
	if err == nil {
		return
	}
	c.failed[method]++
	if c.first == nil {
		c.first = fmt.Errorf("%s: %w", method, err)
	}
}

func (c *calls) write(rec record) {
	for _, method := range slices.Sorted(maps.Keys(c.took)) {
		took := c.took[method]
		slices.Sort(took)
		at := func(p float64) time.Duration { return time.Duration(percentile(took, p) * 1e6) }
		rec.line("Call/"+method, at(50), "p50-ns", at(99), "p99-ns", at(100), "max-ns", len(took), "calls", c.failed[method], "errors")
	}
	if c.first != nil {
		rec.printf("# the first error: %v\n", c.first)
	}
}

// kubelet is a client that makes the calls of a kubelet, at the same rate.
type kubelet struct {
	*client.Client
	*calls
	events bool          // it listens to events, and relists only now and then
	probed string        // the container that it probes
	late   time.Duration // it begins that much later with each of its tasks, cut to the task's period

	known map[string]runtimeapi.ContainerState
}

func (k *kubelet) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	every := func(period time.Duration, task func()) {
		wg.Go(func() { repeat(ctx, k.late%period, period, task) })
	}
	if k.events {
		wg.Go(func() { k.listen(ctx) })
	} else {
		every(relistEvery, func() { k.relist(ctx) })
	}
	every(statusEvery, func() {
		k.do(ctx, "Status", func() error { _, err := k.Status(ctx, &runtimeapi.StatusRequest{}); return err })
		k.do(ctx, "Version", func() error { _, err := k.Version(ctx, &runtimeapi.VersionRequest{}); return err })
	})
	every(statsEvery, func() {
		k.do(ctx, "ListPodSandboxStats", func() error {
			_, err := k.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
			return err
		})
		k.do(ctx, "ImageFsInfo", func() error { _, err := k.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); return err })
	})
	every(imagesEvery, func() {
		k.do(ctx, "ListImages", func() error { _, err := k.ListImages(ctx, &runtimeapi.ListImagesRequest{}); return err })
	})
	every(probeEvery, func() {
		k.do(ctx, "ExecSync", func() error { return probe(ctx, k.Client, k.probed) })
	})
}

// repeat carries out a task every period until ctx ends, the first time after late. One that takes
// longer than the period delays the next.
func repeat(ctx context.Context, late, period time.Duration, task func()) {
	if pause(ctx, late) != nil {
		return
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for ctx.Err() == nil {
		task()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// relist lists pods and containers, and asks for the states of those that have changed, as the
// kubelet's generic PLEG does.
func (k *kubelet) relist(ctx context.Context) {
	k.do(ctx, "ListPodSandbox", func() error { _, err := k.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}); return err })
	var list *runtimeapi.ListContainersResponse
	k.do(ctx, "ListContainers", func() (err error) {
		list, err = k.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		return err
	})
	if list == nil {
		return
	}
	now := map[string]runtimeapi.ContainerState{}
	for _, c := range list.GetContainers() {
		now[c.GetId()] = c.GetState()
		if was, ok := k.known[c.GetId()]; k.known != nil && (!ok || was != c.GetState()) {
			k.look(ctx, c.GetPodSandboxId(), c.GetId())
		}
	}
	k.known = now
}

// look asks for the states of a pod and of one of its containers.
func (k *kubelet) look(ctx context.Context, pod, container string) {
	k.do(ctx, "PodSandboxStatus", func() error {
		_, err := k.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
		return err
	})
	k.do(ctx, "ContainerStatus", func() error {
		_, err := k.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container})
		return err
	})
}

// listen asks for the status of the object of each event, as the kubelet's evented PLEG does. The
// end of the stream is an error.
func (k *kubelet) listen(ctx context.Context) {
	stream, err := k.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	for err == nil {
		var ev *runtimeapi.ContainerEventResponse
		if ev, err = stream.Recv(); err == nil && ev.GetContainerId() != ev.GetPodSandboxStatus().GetId() {
			k.look(ctx, ev.GetPodSandboxStatus().GetId(), ev.GetContainerId())
		}
	}
	k.do(ctx, "GetContainerEvents", func() error { return err })
}
