// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/client"
)

// scale runs total pods with one container each, the first atOnce of them at the same time. It
// measures the daemon's memory before and after, and its restart. The pods stay.
func (n *node) scale(ctx context.Context, atOnce, total int, rec record) error {
	if err := n.weigh("Memory/pods=0", false, rec); err != nil {
		return err
	}
	var pods []pod
	if err := rec.time(fmt.Sprintf("RunPodSandboxesAtOnce/pods=%d", atOnce), func() (err error) {
		pods, err = n.pods(ctx, atOnce, atOnce, "")
		return err
	}); err != nil {
		return err
	}
	more, err := n.pods(ctx, total-atOnce, 4, "")
	if err != nil {
		return err
	}
	if err := parallel(4, append(pods, more...), func(_ int, p pod) error {
		_, err := n.victim(ctx, p, "c")
		return err
	}); err != nil {
		return err
	}
	if err := n.weigh(fmt.Sprintf("Memory/pods=%d", total), true, rec); err != nil {
		return err
	}
	return n.rebooted(ctx, total, fmt.Sprintf("KillToReady/pods=%d", total), rec)
}

// rebooted kills the daemon and measures the time until it is ready again and reports all
// containers that run.
func (n *node) rebooted(ctx context.Context, want int, name string, rec record) error {
	if err := n.end(syscall.SIGKILL); err != nil {
		return err
	}
	took, err := n.start(ctx, func(ctx context.Context, c *client.Client) bool { return running(ctx, c) == want })
	if err == nil {
		rec.line(name, took, "ns/op")
	}
	return err
}

// running counts the containers that the daemon reports as running; -1 if it does not answer.
func running(ctx context.Context, c *client.Client) (k int) {
	resp, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return -1
	}
	for _, ct := range resp.GetContainers() {
		if ct.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			k++
		}
	}
	return k
}

// A node is filled in steps, and all of this is measured at each of them.
const (
	fillAtOnce   = 20 // pods that are made, and removed, at the same time
	perPod       = 2  // containers in each of them
	idleWindow   = 15 * time.Second
	exitsAtScale = 10 // containers that end, one a second
	callsAtScale = 20 // of each list
	relists      = 5
)

// counts are the numbers of pods at which a node is measured, the last of them pods.
func counts(pods int) []int {
	return slices.Compact([]int{max(1, pods/10), max(1, pods*3/10), pods})
}

// runNodes measures how the daemons, or the one whose name contains b.only, bear that many pods.
func (b *bench) runNodes(ctx context.Context, sizes []int) error {
	grow := step{"a full node", func(ctx context.Context, n *node, rec record) error { return n.grow(ctx, sizes, rec) }, false}
	return b.onOneNode(ctx, "scale", "", grow)
}

// onOneNode measures a step with one node of each daemon, or only of the one whose name contains
// b.only. of is put before the daemon in the names of the samples.
func (b *bench) onOneNode(ctx context.Context, title, of string, s step) error {
	stop, err := b.serve(1)
	if err != nil {
		return err
	}
	defer stop()
	only := b.only
	b.only = ""
	for _, k := range b.kinds {
		if !strings.Contains(k.name, only) {
			continue
		}
		if err := b.measure(ctx, k, title, of+"/daemon="+k.name, []step{s}); err != nil {
			return err
		}
	}
	return nil
}

// grow fills a node step by step, measures it at each step, and empties it.
func (n *node) grow(ctx context.Context, sizes []int, rec record) error {
	var running []victim
	made, of := 0, rec.of
	for _, count := range sizes {
		rec.of = fmt.Sprintf("/pods=%d%s", count, of)
		began := time.Now()
		more, err := n.more(ctx, count-made)
		if err != nil {
			return err
		}
		rec.line("MakePod", time.Since(began)/time.Duration(count-made), "ns/op")
		running, made = append(running, more...), count
		ending := min(exitsAtScale, len(running)/2)
		for _, measure := range []func() error{
			func() error { return n.weigh("Memory", true, rec) },
			func() error { return n.share(rec, "AtRest", func() error { return pause(ctx, idleWindow) }) },
			func() error { return n.relistsOf(ctx, count, rec) },
			func() error {
				return n.share(rec, "OneExitASecond", func() error { return n.exitsOneByOne(ctx, running[:ending], rec) })
			},
			func() error {
				running = running[ending:]
				return n.rebooted(ctx, len(running), "KillToReady", rec)
			},
			func() error {
				if err := pause(ctx, idleWindow); err != nil {
					return err
				}
				used, err := processorTime(n.cmd.Process.Pid)
				rec.line("Restart", used, "cpu-ns/op")
				return err
			},
		} {
			if err := measure(); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "%-11s %4d pods, %s\n", n.name, count, time.Since(began).Round(time.Second))
	}
	began := time.Now()
	if err := n.removeAll(ctx, fillAtOnce); err != nil {
		return err
	}
	rec.line("RemovePod", time.Since(began)/time.Duration(made), "ns/op")
	return nil
}

// more makes that many pods, and returns their containers, which run.
func (n *node) more(ctx context.Context, count int) (made []victim, err error) {
	var mu sync.Mutex
	configs := make([]*runtimeapi.PodSandboxConfig, count)
	for i := range configs {
		configs[i] = n.podConfig()
	}
	err = parallel(fillAtOnce, configs, func(_ int, cfg *runtimeapi.PodSandboxConfig) error {
		p, err := n.run(ctx, cfg, "")
		for i := 0; i < perPod && err == nil; i++ {
			var v victim
			v, err = n.victim(ctx, p, fmt.Sprintf("c%d", i))
			mu.Lock()
			made = append(made, v)
			mu.Unlock()
		}
		return err
	})
	return made, err
}

// share records the daemon's share of a core while f ran.
func (n *node) share(rec record, name string, f func() error) error {
	before, err := processorTime(n.cmd.Process.Pid)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := f(); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := processorTime(n.cmd.Process.Pid)
	rec.line(name, 100*float64(after-before)/float64(took), "%core")
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
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for _, v := range victims {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if err := rec.time(killToEvent, func() error { return v.killed(ctx, events.stopped) }); err != nil {
			return err
		}
	}
	return nil
}

// relistsOf measures the lists, and the calls of a kubelet that has to look at everything.
func (n *node) relistsOf(ctx context.Context, pods int, rec record) error {
	var p *runtimeapi.ListPodSandboxResponse
	var c *runtimeapi.ListContainersResponse
	list := func() error {
		if err := rec.time("ListPodSandbox", func() (err error) {
			p, err = n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return err
		}); err != nil {
			return err
		}
		if err := rec.time("ListContainers", func() (err error) {
			c, err = n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			return err
		}); err != nil {
			return err
		}
		if len(p.GetItems()) != pods || len(c.GetContainers()) != pods*perPod {
			return fmt.Errorf("%d pods and %d containers are listed, want %d and %d", len(p.GetItems()), len(c.GetContainers()), pods, pods*perPod)
		}
		return nil
	}
	for range callsAtScale {
		if err := list(); err != nil {
			return err
		}
	}
	for range relists {
		if err := n.timed(rec, "Relist", func() error {
			if err := list(); err != nil {
				return err
			}
			for _, p := range p.GetItems() {
				if _, err := n.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()}); err != nil {
					return about("status of pod", p.GetId(), err)
				}
			}
			for _, c := range c.GetContainers() {
				if _, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()}); err != nil {
					return about("status of container", c.GetId(), err)
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
