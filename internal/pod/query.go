// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/state"
)

// PodSandboxStatus is the sandbox's status and its containers', from memory. With verbose there
// is a JSON document under "info".
func (c *Controller) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	u, err := c.find(id, true)
	if err != nil {
		return nil, err
	}
	at := c.feed.Instant(time.Now()) // before the snapshot, which is never older
	resp := &runtimeapi.PodSandboxStatusResponse{Status: c.sandboxStatus(u), Timestamp: at}
	for _, ct := range byAge(u.containers()) {
		if visible(ct) {
			resp.ContainersStatuses = append(resp.ContainersStatuses, c.containerStatus(ct))
		}
	}
	if verbose {
		resp.Info, err = c.sandboxInfo(ctx, u)
	}
	return resp, err
}

// ListPodSandbox lists the sandboxes that match, oldest first.
func (c *Controller) ListPodSandbox(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var list []*runtimeapi.PodSandbox
	for _, u := range byAge(c.all(true)) {
		if !visible(u) || !idMatches(f.GetId(), u.id) {
			continue
		}
		st, cfg := u.now(), u.sandbox.Config
		if f.GetState() != nil && f.GetState().GetState() != sandboxState(st) || !labelsMatch(f.GetLabelSelector(), cfg.GetLabels()) {
			continue
		}
		list = append(list, &runtimeapi.PodSandbox{
			Id: u.id, Metadata: cfg.GetMetadata(), State: sandboxState(st), CreatedAt: u.sandbox.CreatedAt.UnixNano(),
			Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), RuntimeHandler: u.sandbox.Handler,
		})
	}
	return list
}

// ContainerStatus is one container's status, from memory. With verbose there is a JSON document
// under "info".
func (c *Controller) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	u, err := c.find(id, false)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: c.containerStatus(u)}
	if verbose {
		resp.Info, err = c.containerInfo(ctx, u)
	}
	return resp, err
}

// ListContainers lists the containers that match, oldest first.
func (c *Controller) ListContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	all := byAge(c.all(false))
	list := make([]*runtimeapi.Container, 0, len(all))
	for _, u := range all {
		if !visible(u) || !idMatches(f.GetId(), u.id) || !idMatches(f.GetPodSandboxId(), u.pod.id) {
			continue
		}
		ct, st := u.container, u.now()
		if f.GetState() != nil && f.GetState().GetState() != containerState(st) || !labelsMatch(f.GetLabelSelector(), ct.Config.GetLabels()) {
			continue
		}
		list = append(list, &runtimeapi.Container{
			Id: u.id, PodSandboxId: u.pod.id, Metadata: ct.Config.GetMetadata(), Image: ct.Config.GetImage(), ImageRef: ct.ImageRef,
			State: containerState(st), CreatedAt: ct.CreatedAt.UnixNano(), Labels: ct.Config.GetLabels(),
			Annotations: ct.Config.GetAnnotations(), ImageId: ct.ImageID,
		})
	}
	return list
}

// idMatches: filters take full IDs and, as crictl's users type them, the beginning of one.
func idMatches(want, id string) bool {
	return want == "" || len(id) >= len(want) && id[:len(want)] == want
}

func labelsMatch(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func byAge(us []*unit) []*unit {
	slices.SortFunc(us, func(a, b *unit) int {
		if d := cmp.Compare(a.born, b.born); d != 0 {
			return d
		}
		return cmp.Compare(a.id, b.id)
	})
	return us
}

func sandboxState(st *state.Status) runtimeapi.PodSandboxState {
	if st.Phase == state.Ready && !st.Stopping {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func containerState(st *state.Status) runtimeapi.ContainerState {
	switch st.Phase {
	case state.Creating, state.Created:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case state.Running:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case state.Exited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	default:
		return runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
}

func (c *Controller) sandboxStatus(u *unit) *runtimeapi.PodSandboxStatus {
	st, cfg := u.now(), u.sandbox.Config
	s := &runtimeapi.PodSandboxStatus{
		Id: u.id, Metadata: cfg.GetMetadata(), State: sandboxState(st), CreatedAt: u.sandbox.CreatedAt.UnixNano(),
		Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(), RuntimeHandler: u.sandbox.Handler,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: cfg.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	if st.Network != nil && len(st.Network.IPs) > 0 && st.Holds.Has(state.HoldNetwork) {
		s.Network.Ip = st.Network.IPs[0]
		for _, ip := range st.Network.IPs[1:] {
			s.Network.AdditionalIps = append(s.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	return s
}

func (c *Controller) containerStatus(u *unit) *runtimeapi.ContainerStatus {
	st, ct := u.now(), u.container
	cfg := ct.Config
	s := &runtimeapi.ContainerStatus{
		Id: u.id, Metadata: cfg.GetMetadata(), State: containerState(st), CreatedAt: ct.CreatedAt.UnixNano(),
		Image: cfg.GetImage(), ImageRef: ct.ImageRef, ImageId: ct.ImageID, Labels: cfg.GetLabels(), Annotations: cfg.GetAnnotations(),
		Mounts: cfg.GetMounts(), LogPath: ct.LogPath, StopSignal: criSignal(ct.StopSignal),
	}
	if r := cfg.GetLinux().GetResources(); r != nil {
		s.Resources = &runtimeapi.ContainerResources{Linux: r}
	}
	if !st.StartedAt.IsZero() {
		s.StartedAt = st.StartedAt.UnixNano()
	}
	if st.Phase == state.Exited {
		s.FinishedAt = st.Exit.At.UnixNano()
		s.ExitCode = int32(st.Exit.ExitCode()) //nolint:gosec // 0..255
		s.Reason, s.Message = st.Exit.Reason(), st.Exit.Detail()
	}
	return s
}

func criSignal(s string) runtimeapi.Signal {
	n, err := parseSignal(s)
	if err != nil {
		return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
	}
	for name, v := range runtimeapi.Signal_value {
		if m, err := parseSignal(name); err == nil && m == n {
			return runtimeapi.Signal(v)
		}
	}
	return runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
}

// containerInfo is the document that crictl inspect shows. What containerd has to say is left out,
// with the reason, when it cannot be asked.
func (c *Controller) containerInfo(ctx context.Context, u *unit) (map[string]string, error) {
	st, ct := u.now(), u.container
	info := map[string]any{
		"sandboxID": u.pod.id, "pid": alivePid(u, st), "removing": st.Removing, "snapshotKey": u.id, "snapshotter": ct.Snapshotter,
		"image": ct.Config.GetImage().GetImage(), "runtimeType": u.handler.Type, "runtimeHandler": ct.Handler, "config": ct.Config, "berth": c.berthInfo(u, st),
	}
	return c.withSpec(ctx, u, info)
}

func (c *Controller) sandboxInfo(ctx context.Context, u *unit) (map[string]string, error) {
	st, sb := u.now(), u.sandbox
	info := map[string]any{
		"pid": alivePid(u, st), "processStatus": string(st.Phase), "netNamespaceClosed": sb.NetNS != "" && !st.Holds.Has(state.HoldNetNS),
		"image": "", "snapshotKey": "", "snapshotter": "", "runtimeHandler": sb.Handler, "runtimeType": u.handler.Type, "config": sb.Config,
		"berth": c.berthInfo(u, st),
	}
	if st.Network != nil {
		info["cniResult"] = st.Network.Result
	}
	return c.withSpec(ctx, u, info)
}

func alivePid(u *unit, st *state.Status) uint32 {
	if st.Phase != u.alive() {
		return 0
	}
	return st.Process.Pid
}

// berthInfo is what only berth knows.
func (c *Controller) berthInfo(u *unit, st *state.Status) map[string]any {
	m := map[string]any{"phase": st.Phase, "holds": st.Holds, "process": st.Process, "stopping": st.Stopping}
	if !st.Exit.Zero() {
		m["exit"] = st.Exit
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.lastErr != nil {
		m["releaseError"] = u.mu.lastErr.Error()
	}
	return m
}

func (c *Controller) withSpec(ctx context.Context, u *unit, info map[string]any) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if s, err := c.runtime.Spec(ctx, u.id); err == nil {
		info["runtimeSpec"] = s
	} else {
		info["runtimeSpecError"] = err.Error()
	}
	b, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("describe %s %s: %w", u.kind(), u.id, err)
	}
	return map[string]string{"info": string(b)}, nil
}
