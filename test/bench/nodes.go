// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
)

// The names of the metrics of a run with -scale.
const (
	growPod      = "grow_pod"
	memoryDaemon = "memory_daemon"
	memoryShims  = "memory_shims"
	idleCPU      = "idle_cpu"
	exitingCPU   = "exiting_cpu"
	exitingLag   = "exiting_lag"
	listPods     = "list_pods"
	relistTime   = "relist"
	bootTime     = "boot"
	bootCPU      = "boot_cpu"
	dropPod      = "drop_pod"
)

// A node is filled in steps, and all of this is measured at each of them.
const (
	fillAtOnce   = 20 // pods that are made, and removed, at the same time
	perPod       = 2  // containers in each of them
	idleWindow   = 15 * time.Second
	exitsAtScale = 10 // containers that end, one a second
	callsAtScale = 20 // of each list
	relists      = 5
)

// nodeMetrics are the rows of a run with -scale.
func nodeMetrics() []metric {
	return []metric{
		{growPod, "to make a pod with 2 containers, 20 pods at a time, each", operations, "ms"},
		{dropPod, "to stop and remove a pod, 20 at a time, each", operations, "ms"},
		{listPods, "ListPodSandbox", operations, "ms"},
		{listContainers, "ListContainers", operations, "ms"},
		{relistTime, "both lists, then the status of each pod and container", operations, "ms"},
		{relistTime + cpu, "processor time of that", operations, "ms"},
		{bootTime, "kill -9 and start to ready", operations, "ms"},
		{bootCPU, "processor time until 15 s later", operations, "ms"},
		{exitingLag, "kill to CONTAINER_STOPPED event, one exit a second", exits, "ms"},
		{idleCPU, "processor, at rest", memory, "% of a core"},
		{exitingCPU, "processor, one exit a second", memory, "% of a core"},
		{memoryDaemon, "memory of the daemon (PSS)", memory, "MiB"},
		{memoryShims, "memory of all shims (PSS)", memory, "MiB"},
	}
}

// counts are the numbers of pods at which a node is measured, the last of them pods.
func counts(pods int) []int {
	return slices.Compact([]int{max(1, pods/10), max(1, pods*3/10), pods})
}

// grow fills a node step by step, measures it at each step, and empties it.
func (n *node) grow(ctx context.Context, sizes []int, rec func(pods int) record, progress func(string)) error {
	var running []victim
	made := 0
	for _, count := range sizes {
		rec, began := rec(count), time.Now()
		more, err := n.more(ctx, count-made)
		if err != nil {
			return err
		}
		rec(growPod, ms(time.Since(began))/float64(count-made))
		running, made = append(running, more...), count
		ending := min(exitsAtScale, len(running)/2)
		if err := n.weigh(memoryDaemon, memoryShims, rec); err != nil {
			return err
		}
		for _, measure := range []func() error{
			func() error { return n.atRest(ctx, rec) },
			func() error { return n.relistsOf(ctx, count, rec) },
			func() error { return n.exitsOneByOne(ctx, running[:ending], rec) },
		} {
			if err := measure(); err != nil {
				return err
			}
		}
		running = running[ending:]
		if err := n.rebooted(ctx, len(running), rec); err != nil {
			return err
		}
		progress(fmt.Sprintf("%4d pods, %s", count, time.Since(began).Round(time.Second)))
	}
	began := time.Now()
	if err := n.removeAll(ctx, fillAtOnce); err != nil {
		return err
	}
	rec(made)(dropPod, ms(time.Since(began))/float64(made))
	return nil
}

// more makes that many pods, and returns their containers, which run.
func (n *node) more(ctx context.Context, count int) ([]victim, error) {
	var mu sync.Mutex
	var made []victim
	configs := make([]*runtimeapi.PodSandboxConfig, count)
	for i := range configs {
		configs[i] = n.podConfig()
	}
	err := parallel(fillAtOnce, configs, func(cfg *runtimeapi.PodSandboxConfig) error {
		p, err := n.run(ctx, cfg, "")
		if err != nil {
			return err
		}
		for i := range perPod {
			v, err := n.victim(ctx, p, fmt.Sprintf("c%d", i))
			if err != nil {
				return err
			}
			mu.Lock()
			made = append(made, v)
			mu.Unlock()
		}
		return nil
	})
	return made, err
}

// used returns what share of a core the daemon used while f ran.
func (n *node) used(f func() error) (percent float64, err error) {
	began := time.Now()
	_, used, err := n.timed(f)
	return 100 * float64(used) / float64(time.Since(began)), err
}

// atRest measures what the daemon uses while nobody calls.
func (n *node) atRest(ctx context.Context, rec record) error {
	percent, err := n.used(func() error { return pause(ctx, idleWindow) })
	rec(idleCPU, percent)
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// exitsOneByOne kills a container every second while a client listens to the events.
func (n *node) exitsOneByOne(ctx context.Context, victims []victim, rec record) error {
	events, stop, err := n.listen(ctx)
	if err != nil {
		return err
	}
	defer stop()
	percent, err := n.used(func() error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for _, v := range victims {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			took, err := v.killedAndAnnounced(events)
			if err != nil {
				return err
			}
			rec(exitingLag, ms(took))
		}
		return nil
	})
	rec(exitingCPU, percent)
	return err
}

// relistsOf measures the lists, and what the kubelet asks when it has to look at everything.
func (n *node) relistsOf(ctx context.Context, pods int, rec record) error {
	var sandboxes []*runtimeapi.PodSandbox
	var containers []*runtimeapi.Container
	list := func() error {
		began := time.Now()
		p, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		rec(listPods, ms(time.Since(began)))
		began = time.Now()
		c, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		rec(listContainers, ms(time.Since(began)))
		sandboxes, containers = p.GetItems(), c.GetContainers()
		if len(sandboxes) != pods || len(containers) != pods*perPod {
			return fmt.Errorf("%d pods and %d containers are listed, want %d and %d", len(sandboxes), len(containers), pods, pods*perPod)
		}
		return nil
	}
	for range callsAtScale {
		if err := list(); err != nil {
			return err
		}
	}
	for range relists {
		took, used, err := n.timed(func() error {
			if err := list(); err != nil {
				return err
			}
			for _, p := range sandboxes {
				if _, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()}); err != nil {
					return fmt.Errorf("status of pod %s: %w", p.GetId(), err)
				}
			}
			for _, c := range containers {
				if _, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()}); err != nil {
					return fmt.Errorf("status of container %s: %w", c.GetId(), err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		rec(relistTime, ms(took))
		rec(relistTime+cpu, ms(used))
	}
	return nil
}

// rebooted kills the daemon and measures the time until it is ready again and reports all
// containers that run, and the processor time of what it does then: it compares everything that it
// has on record with what there is.
func (n *node) rebooted(ctx context.Context, want int, rec record) error {
	if err := n.end(syscall.SIGKILL); err != nil {
		return err
	}
	took, err := n.start(ctx, func(ctx context.Context, c *cri.Client) bool { return running(ctx, c) == want })
	if err != nil {
		return err
	}
	rec(bootTime, ms(took))
	if err := pause(ctx, idleWindow); err != nil {
		return err
	}
	used, err := processorTime(n.cmd.Process.Pid)
	rec(bootCPU, ms(used))
	return err
}

// at is the name under which the samples of a metric with that many pods are stored.
func at(metric string, pods int) string { return fmt.Sprintf("%s@%d", metric, pods) }

// runNodes measures how both daemons, or the one whose name contains b.only, bear that many pods.
func (b *bench) runNodes(ctx context.Context) error {
	address, stop, err := serveImages(b.build, 1)
	if err != nil {
		return err
	}
	defer stop()
	b.registry = address
	only := b.only
	b.only = ""
	for _, k := range kinds {
		if !strings.Contains(k.name, only) {
			continue
		}
		grow := func(ctx context.Context, n *node, _ record) error {
			return n.grow(ctx, b.results.Nodes, func(pods int) record {
				return func(m string, v float64) { b.results.add(at(m, pods), k.name, v) }
			}, func(did string) { fmt.Fprintf(b.progress, "%-11s %s\n", k.name, did) })
		}
		if err := b.with(ctx, k, "scale", []step{{"a full node", grow, false}}); err != nil {
			return err
		}
	}
	return nil
}
