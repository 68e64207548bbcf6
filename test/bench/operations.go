// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// obedient is a script that ends at once on SIGTERM. It prints ready when it handles the signal.
	obedient = "trap 'exit 0' TERM; echo ready; sleep 1000000 & wait"
	// postponed is how long a daemon may take for work after its answers.
	postponed = 2 * time.Second
)

// lives measures each call in the life of a pod with one container, count times, with a pause after
// each call.
func (n *node) lives(ctx context.Context, count int, rec record) error {
	for range count {
		var p pod
		var id string
		var running, last time.Duration
		cfg := n.podConfig()
		measured := func(name string, call func() error) error {
			began := time.Now()
			err := call()
			if last = time.Since(began); err == nil {
				rec.line(name, last, "ns/op")
			}
			time.Sleep(idlePause)
			return err
		}
		for _, s := range []func() error{
			func() error {
				return measured("RunPodSandbox", func() (err error) { p, err = n.run(ctx, cfg, ""); return err })
			},
			func() error {
				running = last
				return measured("CreateContainer", func() (err error) {
					id, err = n.create(ctx, p, containerConfig("c", "sh", "-c", obedient))
					return err
				})
			},
			func() error {
				running += last
				return measured("StartContainer", func() error { return n.startContainer(ctx, id) })
			},
			func() error {
				rec.line("PodUntilItRuns", running+last, "ns/op")
				return n.says(ctx, cfg.GetLogDirectory()+"/c.log", "ready")
			},
			func() error {
				return measured("UpdateContainerResources", func() error {
					_, err := n.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
						ContainerId: id,
						Linux:       &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 90000},
					})
					return err
				})
			},
			func() error {
				return measured("StopContainer", func() error { return n.stopContainer(ctx, id, 10) })
			},
			func() error {
				return measured("RemoveContainer", func() error { return n.removeContainer(ctx, id) })
			},
			func() error { return measured("StopPodSandbox", func() error { return n.stopPod(ctx, p.id) }) },
			func() error { return measured("RemovePodSandbox", func() error { return n.removePod(ctx, p.id) }) },
		} {
			if err := s(); err != nil {
				return err
			}
		}
	}
	return nil
}

// wholeLives measures the same life as one span, without a pause between the calls. Work that a
// daemon postpones in one call delays a later one, and is measured here. So is the processor time
// of one life, as the mean of all: the kernel counts it for the daemon and its children together.
func (n *node) wholeLives(ctx context.Context, count int, rec record) error {
	before, err := n.account.used()
	if err != nil {
		return err
	}
	for range count {
		if err := rec.time("WholeLife", func() error { return n.life(ctx, sleeper...) }); err != nil {
			return err
		}
	}
	time.Sleep(postponed)
	after, err := n.account.used()
	rec.line("WholeLife", (after-before)/time.Duration(count), "cpu-ns/op")
	return err
}

// life runs a pod with one container that does not end by itself, and removes it.
func (n *node) life(ctx context.Context, command ...string) error {
	p, err := n.run(ctx, n.podConfig(), "")
	if err != nil {
		return err
	}
	id, err := n.create(ctx, p, containerConfig("c", command...))
	if err != nil {
		return err
	}
	for _, call := range []func() error{
		func() error { return n.startContainer(ctx, id) },
		func() error { return n.stopContainer(ctx, id, 0) },
		func() error { return n.removeContainer(ctx, id) },
		func() error { return n.stopPod(ctx, p.id) },
		func() error { return n.removePod(ctx, p.id) },
	} {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

// says waits until a log contains a word.
func (n *node) says(ctx context.Context, path, word string) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(word)) {
			return nil
		}
	}
	return fmt.Errorf("log %s does not say %q", path, word)
}

// execs measures ExecSync in one container, count times, with a pause after each call, and the
// processor time of the daemon, its shims and all that they have started, the pauses included.
func (n *node) execs(ctx context.Context, count int, rec record) error {
	pods, err := n.pods(ctx, 1, 1, "")
	if err != nil {
		return err
	}
	v, err := n.victim(ctx, pods[0], "c")
	if err != nil {
		return err
	}
	before, err := n.family()
	if err != nil {
		return err
	}
	for range count {
		time.Sleep(idlePause)
		if err := rec.time("ExecSync", func() error { return probe(ctx, n.Client, v.id) }); err != nil {
			return err
		}
	}
	after, err := n.family()
	rec.line("ExecSync", (after-before)/time.Duration(count), "cpu-ns/op")
	return err
}

// family is the processor time of the daemon, its shims, and all that these have started and that
// has ended. A process that has joined a container is in another group than the daemon's, so
// counting by groups would miss it.
func (n *node) family() (time.Duration, error) {
	b, err := os.ReadFile(filepath.Join(n.account.dir, "cgroup.procs"))
	if err != nil {
		return 0, fmt.Errorf("list the daemon's processes: %w", err)
	}
	const ticks = 100 // a second, on every architecture that matters here
	sum := 0
	for _, pid := range strings.Fields(string(b)) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, v := range f[14-3 : 18-3] { // utime, stime, cutime and cstime
			n, err := strconv.Atoi(v)
			if err != nil {
				return 0, fmt.Errorf("read processor time of %s: %w", pid, err)
			}
			sum += n
		}
	}
	return time.Duration(sum) * time.Second / ticks, nil
}

// lists measures ListContainers without a filter, as the kubelet calls it.
func (n *node) lists(ctx context.Context, count, want int, rec record) error {
	for range count {
		if err := rec.time(listName(want), func() error {
			resp, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
			if got := len(resp.GetContainers()); err == nil && got != want {
				err = fmt.Errorf("%d containers, want %d", got, want)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func listName(containers int) string { return fmt.Sprintf("ListContainers/containers=%d", containers) }
