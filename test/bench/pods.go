// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pod is a running sandbox, with its configuration, which CreateContainer needs again.
type pod struct {
	id     string
	config *runtimeapi.PodSandboxConfig
}

// names numbers the pods, so that every pod has a new name.
var names int

// podConfig returns an ordinary pod: with a network, and a PID namespace for each container.
func (n *node) podConfig() *runtimeapi.PodSandboxConfig {
	names++
	name := fmt.Sprintf("pod%d", names)
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "bench", Uid: "uid-" + name}, Hostname: name,
		LogDirectory: n.dir + "/logs/" + name, Labels: map[string]string{"app": name},
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.cgroup, SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		}},
	}
}

// The paths that the kubelet masks or makes read-only for every container that is not privileged.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// containerConfig returns an ordinary container, as the kubelet requests it.
func containerConfig(name string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: busybox, UserSpecifiedImage: busybox}, Command: command,
		LogPath: name + ".log", Labels: map[string]string{"name": name},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			MaskedPaths:      maskedPaths, ReadonlyPaths: readonlyPaths,
		}},
	}
}

// sleeper is the command of a container that only a signal ends.
var sleeper = []string{"sleep", "1000000"}

func (n *node) run(ctx context.Context, cfg *runtimeapi.PodSandboxConfig, handler string) (pod, error) {
	resp, err := n.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err != nil {
		return pod{}, fmt.Errorf("run pod %s: %w", cfg.GetMetadata().GetName(), err)
	}
	return pod{resp.GetPodSandboxId(), cfg}, nil
}

// pods runs so many pods, atOnce at a time.
func (n *node) pods(ctx context.Context, count, atOnce int, handler string) ([]pod, error) {
	out := make([]pod, count)
	configs := make([]*runtimeapi.PodSandboxConfig, count)
	for i := range configs {
		configs[i] = n.podConfig()
	}
	return out, parallel(atOnce, configs, func(i int, cfg *runtimeapi.PodSandboxConfig) (err error) {
		out[i], err = n.run(ctx, cfg, handler)
		return err
	})
}

// fill creates containers in new pods and starts none of them. It returns their IDs by pod.
func (n *node) fill(ctx context.Context, count, perPod int) ([][]string, error) {
	pods, err := n.pods(ctx, count, 4, "")
	if err != nil {
		return nil, err
	}
	made := make([][]string, count)
	return made, parallel(4, pods, func(i int, p pod) error {
		for j := range perPod {
			id, err := n.create(ctx, p, containerConfig(fmt.Sprintf("c%d", j), sleeper...))
			if err != nil {
				return err
			}
			made[i] = append(made[i], id)
		}
		return nil
	})
}

// startAll starts containers and finds their processes.
func (n *node) startAll(ctx context.Context, ids []string) ([]victim, error) {
	out := make([]victim, len(ids))
	return out, parallel(4, ids, func(i int, id string) (err error) {
		out[i], err = n.started(ctx, id)
		return err
	})
}

func (n *node) create(ctx context.Context, p pod, cfg *runtimeapi.ContainerConfig) (string, error) {
	resp, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.config})
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", cfg.GetMetadata().GetName(), err)
	}
	return resp.GetContainerId(), nil
}

func (n *node) startContainer(ctx context.Context, id string) error {
	_, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	return about("start container", id, err)
}

func (n *node) stopContainer(ctx context.Context, id string, seconds int64) error {
	_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: seconds})
	return about("stop container", id, err)
}

func (n *node) removeContainer(ctx context.Context, id string) error {
	_, err := n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	return about("remove container", id, err)
}

func (n *node) stopPod(ctx context.Context, id string) error {
	_, err := n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return about("stop pod", id, err)
}

func (n *node) removePod(ctx context.Context, id string) error {
	_, err := n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return about("remove pod", id, err)
}

func about(what, id string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, id, err)
	}
	return nil
}

// removeAll stops and removes every pod, so many at a time.
func (n *node) removeAll(ctx context.Context, atOnce int) error {
	pods, err := n.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	return parallel(atOnce, pods.GetItems(), func(_ int, p *runtimeapi.PodSandbox) error {
		if err := n.stopPod(ctx, p.GetId()); err != nil {
			return err
		}
		return n.removePod(ctx, p.GetId())
	})
}

// victim is a running container whose process the bench may kill.
type victim struct {
	id  string
	pid int
}

// victim creates and starts a sleeper and finds its process.
func (n *node) victim(ctx context.Context, p pod, name string) (victim, error) {
	id, err := n.create(ctx, p, containerConfig(name, sleeper...))
	if err != nil {
		return victim{}, err
	}
	return n.started(ctx, id)
}

// started starts a container and finds its process: "pid" in the document "info" of a verbose
// status, with both daemons.
func (n *node) started(ctx context.Context, id string) (victim, error) {
	if err := n.startContainer(ctx, id); err != nil {
		return victim{}, err
	}
	resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return victim{}, fmt.Errorf("status of container %s: %w", id, err)
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil || info.Pid <= 1 {
		return victim{}, fmt.Errorf("verbose status of container %s has pid %d: %w", id, info.Pid, err)
	}
	return victim{id, info.Pid}, nil
}

// kill ends the process as the OOM killer or an operator would, without the daemon.
func (v victim) kill() error {
	return about("kill the process of container", v.id, syscall.Kill(v.pid, syscall.SIGKILL))
}

// parallel calls f for each element of list, k at a time, and returns the first error.
func parallel[T any](k int, list []T, f func(int, T) error) error {
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	slots := make(chan struct{}, k)
	for i, v := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(i, v); err != nil {
				once.Do(func() { first = err })
			}
		})
	}
	wg.Wait()
	return first
}
