// SPDX-License-Identifier: Apache-2.0

package pod

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/retry"
	"berth/internal/heart/state"
)

// Target describes one sandbox or container for other rooms (exec, attach, port-forward,
// statistics).
type Target struct {
	ID      string
	PodID   string // the sandbox; of a sandbox, its own ID
	Handler Handler
	// Pinned is set for a sandbox without a process: files hold its namespaces.
	Pinned bool
	// NetNS is the path of the pod's network namespace; "" for the host's.
	NetNS string
	// Process is the init process as it is on record, with its cgroup.
	Process state.Process
	// Endpoint is where the task is reached; zero: the shim that containerd knows.
	Endpoint state.Endpoint
	Running  bool
	// CgroupParent is the parent cgroup that the pod was asked to be in; "" for none.
	CgroupParent string
	// Snapshotter is where the writable layer of a container is, under the key ID; "" of a sandbox.
	Snapshotter string
	// PodConfig is the requested configuration of the pod, and Config that of the container; nil
	// for a sandbox. They must not be changed.
	PodConfig *runtimeapi.PodSandboxConfig
	Config    *runtimeapi.ContainerConfig
	IPs       []string // of the pod
	// PodOverhead and PodResources are the kubelet's latest values for the resources of the pod,
	// whose cgroup is the kubelet's own; nil if there are none. They must not be changed.
	PodOverhead  *runtimeapi.LinuxContainerResources
	PodResources *runtimeapi.LinuxContainerResources
	// Ended is closed once the exit is settled and visible.
	Ended <-chan struct{}
	// Stopping is closed while a stop or a removal is in flight: nothing may keep the processes from
	// running.
	Stopping <-chan struct{}
}

// HasEnded reports whether the exit is settled and visible.
func (t Target) HasEnded() bool { return retry.Closed(t.Ended) }

// IsStopping reports whether a stop or a removal is in flight.
func (t Target) IsStopping() bool { return retry.Closed(t.Stopping) }

func targetOf(u *unit) Target {
	t := Target{
		ID:       u.id,
		PodID:    u.pod.id,
		Handler:  u.handler,
		Pinned:   u.isPinned(),
		NetNS:    u.pod.sandbox.NetNS,
		Process:  u.process(),
		Endpoint: u.pod.now().Endpoint,
		Running:  u.runs(),
		Ended:    u.settled.Notice(),
		Stopping: u.stopping(),

		CgroupParent: u.pod.sandbox.Config.GetLinux().GetCgroupParent(),
	}
	t.PodConfig = u.pod.sandbox.Config
	t.PodOverhead, t.PodResources = podResources(u.pod)
	if n := u.pod.now().Network; n != nil {
		t.IPs = n.IPs
	}
	if !u.isSandbox() {
		t.Config = u.container.Config
		t.Snapshotter = u.container.Snapshotter
	}
	return t
}

// podResources returns the resources of a pod: the requested ones, as replaced by updates.
func podResources(pod *unit) (overhead, resources *runtimeapi.LinuxContainerResources) {
	linux := pod.sandbox.Config.GetLinux()
	overhead, resources = linux.GetOverhead(), linux.GetResources()
	if r := pod.now().PodResources; r != nil {
		if r.Overhead != nil {
			overhead = r.Overhead.Linux
		}
		if r.Resources != nil {
			resources = r.Resources.Linux
		}
	}
	return overhead, resources
}
