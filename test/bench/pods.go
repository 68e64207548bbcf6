// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
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
func containerConfig(name string, labels map[string]string, command ...string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: busybox}, Command: command, LogPath: name + ".log", Labels: labels,
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

// pods runs k pods, four at a time.
func (n *node) pods(ctx context.Context, k int, handler string) ([]pod, error) {
	out := make([]pod, k)
	index := make([]int, k)
	for i := range out {
		index[i], out[i].config = i, n.podConfig()
	}
	err := parallel(4, index, func(i int) error {
		p, err := n.run(ctx, out[i].config, handler)
		out[i].id = p.id
		return err
	})
	return out, err
}

func (n *node) create(ctx context.Context, p pod, cfg *runtimeapi.ContainerConfig) (string, error) {
	resp, err := n.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: cfg, SandboxConfig: p.config})
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", cfg.GetMetadata().GetName(), err)
	}
	return resp.GetContainerId(), nil
}

func (n *node) startContainer(ctx context.Context, id string) error {
	if _, err := n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("start container %s: %w", id, err)
	}
	return nil
}

// victim is a running container whose process the bench may kill.
type victim struct {
	id  string
	pid int
}

// victim creates and starts a sleeper and finds its process.
func (n *node) victim(ctx context.Context, p pod, name string) (victim, error) {
	id, err := n.create(ctx, p, containerConfig(name, nil, sleeper...))
	if err == nil {
		err = n.startContainer(ctx, id)
	}
	if err != nil {
		return victim{}, err
	}
	pid, err := n.pid(ctx, id)
	return victim{id, pid}, err
}

// kill ends the process as the OOM killer or an operator would, without the daemon.
func (v victim) kill() error {
	if err := syscall.Kill(v.pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d of container %s: %w", v.pid, v.id, err)
	}
	return nil
}

// pid returns the process of a container: "pid" in the document "info" of a verbose status, with
// both daemons.
func (n *node) pid(ctx context.Context, id string) (int, error) {
	resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, fmt.Errorf("status of container %s: %w", id, err)
	}
	var info struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil || info.Pid <= 1 {
		return 0, fmt.Errorf("verbose status of container %s has pid %d: %w", id, info.Pid, err)
	}
	return info.Pid, nil
}
