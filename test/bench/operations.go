// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// obedient is a command that ends at once on SIGTERM. It prints ready when it handles the signal.
var obedient = []string{"sh", "-c", "trap 'exit 0' TERM; echo ready; sleep 1000000 & wait"}

// postponed is how long a daemon may take with what it does after its answers.
const postponed = 2 * time.Second

// lives measures each call in the life of a pod with one container, count times, with a pause after
// each call.
func (n *node) lives(ctx context.Context, count int, rec record) error {
	for range count {
		var p pod
		var id string
		cfg := n.podConfig()
		steps := []struct {
			metric string
			call   func() error
		}{
			{runPod, func() (err error) { p, err = n.run(ctx, cfg, ""); return err }},
			{createContainer, func() (err error) {
				id, err = n.create(ctx, p, containerConfig("c", nil, obedient...))
				return err
			}},
			{startContainer, func() error { return n.startContainer(ctx, id) }},
			{"", func() error { return n.says(ctx, cfg.GetLogDirectory()+"/c.log", "ready") }},
			{updateContainer, func() error {
				_, err := n.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
					ContainerId: id,
					Linux:       &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 90000},
				})
				return err
			}},
			{stopContainer, func() error {
				_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 10})
				return err
			}},
			{removeContainer, func() error {
				_, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
				return err
			}},
			{stopPod, func() error {
				_, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
				return err
			}},
			{removePod, func() error {
				_, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
				return err
			}},
		}
		running := 0.
		for _, s := range steps {
			began := time.Now()
			if err := s.call(); err != nil {
				return fmt.Errorf("%s: %w", s.metric, err)
			}
			took := ms(time.Since(began))
			if s.metric != "" {
				rec(s.metric, took)
			}
			switch s.metric {
			case runPod, createContainer:
				running += took
			case startContainer:
				rec(podRunning, running+took)
			}
			time.Sleep(idlePause)
		}
	}
	return nil
}

// wholeLives measures the same life as one span, without a pause between the calls. Work that a
// daemon postpones in one call delays a later one, and is measured here. So is the processor time of
// one life, as the mean of all: the kernel counts it for the daemon and what it starts together.
func (n *node) wholeLives(ctx context.Context, count int, rec record) error {
	before, err := n.account.used()
	if err != nil {
		return err
	}
	for range count {
		began := time.Now()
		p, err := n.run(ctx, n.podConfig(), "")
		if err != nil {
			return err
		}
		v, err := n.victim(ctx, p, "c")
		if err != nil {
			return err
		}
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: v.id}); err != nil { // without a grace period
			return fmt.Errorf("stop container: %w", err)
		}
		if _, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: v.id}); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		if _, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			return fmt.Errorf("stop pod: %w", err)
		}
		if _, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			return fmt.Errorf("remove pod: %w", err)
		}
		rec(wholeLife, ms(time.Since(began)))
	}
	time.Sleep(postponed)
	after, err := n.account.used()
	if err != nil {
		return err
	}
	rec(wholeLife+cpu, ms(after-before)/float64(count))
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

// execs measures ExecSync in one container, count times, with a pause after each call.
func (n *node) execs(ctx context.Context, count int, rec record) error {
	pods, err := n.pods(ctx, 1, "")
	if err != nil {
		return err
	}
	v, err := n.victim(ctx, pods[0], "c")
	if err != nil {
		return err
	}
	for range count {
		time.Sleep(idlePause)
		began := time.Now()
		resp, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: v.id, Cmd: []string{"true"}, Timeout: 10})
		if err != nil {
			return fmt.Errorf("exec in container %s: %w", v.id, err)
		}
		rec(execSync, ms(time.Since(began)))
		if resp.GetExitCode() != 0 {
			return fmt.Errorf("exec in container %s: true ends with code %d", v.id, resp.GetExitCode())
		}
	}
	return nil
}

// fill creates containers in new pods and starts none of them. It returns their IDs by pod.
func (n *node) fill(ctx context.Context, podCount, containers int) (map[string][]string, error) {
	pods, err := n.pods(ctx, podCount, "")
	if err != nil {
		return nil, err
	}
	made := make([][]string, podCount)
	index := make([]int, podCount)
	for i := range index {
		index[i] = i
	}
	err = parallel(4, index, func(i int) error {
		for j := range containers {
			id, err := n.create(ctx, pods[i], containerConfig(fmt.Sprintf("c%d", j), map[string]string{"number": fmt.Sprint(j)}, sleeper...))
			if err != nil {
				return err
			}
			made[i] = append(made[i], id)
		}
		return nil
	})
	created := map[string][]string{}
	for i, p := range pods {
		created[p.id] = made[i]
	}
	return created, err
}

// lists measures ListContainers without a filter, as the kubelet calls it.
func (n *node) lists(ctx context.Context, count, want int, rec record) error {
	for range count {
		began := time.Now()
		resp, err := n.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		rec(listContainers, ms(time.Since(began)))
		if got := len(resp.GetContainers()); got != want {
			return fmt.Errorf("list containers: %d, want %d", got, want)
		}
	}
	return nil
}
