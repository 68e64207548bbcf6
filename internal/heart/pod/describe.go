// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth/internal/base/exit"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// describer makes the documents of the verbose statuses, which crictl inspect and inspectp show.
// Details from containerd are left out, with the reason, if it cannot be asked.
type describer struct {
	objects Objects
}

func (d *describer) container(ctx context.Context, u *unit) (map[string]string, error) {
	st, ct := u.now(), u.container
	info := map[string]any{
		"sandboxID":      u.pod.id,
		"pid":            runningPID(u, st),
		"removing":       st.Removing,
		"snapshotKey":    u.id,
		"snapshotter":    ct.Snapshotter,
		"image":          ct.Config.GetImage().GetImage(),
		"runtimeType":    u.handler.Type,
		"runtimeHandler": ct.Handler,
		"config":         ct.Config,
	}
	// The configuration shows only the fields of the cri-api that berth is built with.
	if ref := spec.PulledProfile(ct.Config.GetLinux().GetSecurityContext().GetSeccomp()); ref != "" {
		info["seccompProfile"] = ref
	}
	return d.document(ctx, u, info)
}

func (d *describer) sandbox(ctx context.Context, u *unit) (map[string]string, error) {
	st, sb := u.now(), u.sandbox
	info := map[string]any{
		"pid":                runningPID(u, st),
		"processStatus":      string(st.Phase),
		"netNamespaceClosed": sb.NetNS != "" && !st.Holds.Has(state.HoldNetNS),
		"image":              "",
		"snapshotKey":        "",
		"snapshotter":        "",
		"runtimeHandler":     sb.Handler,
		"runtimeType":        u.handler.Type,
		"config":             sb.Config,
	}
	if ref := spec.PulledProfile(sb.Config.GetLinux().GetSecurityContext().GetSeccomp()); ref != "" {
		info["seccompProfile"] = ref
	}
	if sb.Image != nil {
		info["image"], info["snapshotKey"], info["snapshotter"] = sb.Image.ID, viewKey(u.id, 0), sb.Image.Snapshotter
	}
	if st.Network != nil {
		info["cniResult"] = st.Network.Result
	}
	return d.document(ctx, u, info)
}

func (d *describer) document(ctx context.Context, u *unit, info map[string]any) (map[string]string, error) {
	info["berth"] = describe(u)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if s, err := d.objects.Spec(ctx, u.id); err == nil {
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

// describe returns the details of u that only berth has.
func describe(u *unit) map[string]any {
	st := u.now()
	m := map[string]any{"phase": st.Phase, "holds": st.Holds, "process": st.Process, "stopping": st.Stopping}
	if st.Resources != nil {
		m["resources"] = st.Resources
	}
	if st.PodResources != nil {
		m["podResources"] = st.PodResources
	}
	if st.OOMKills > 0 {
		m["oomKills"], m["oomKilledAt"] = st.OOMKills, u.clock.Wall(st.OOMKilledAt)
	}
	if !st.Exit.Zero() {
		m["exit"] = shown(u, st.Exit)
	}
	if known, _ := u.evidence.known(); !known.Zero() && !st.Phase.Ended() {
		m["ended"] = shown(u, known) // not on record yet
	}
	if held := u.told.holding(); held != "" {
		m["held"] = held
	}
	if err := u.releaseError(); err != nil {
		m["releaseError"] = err.Error()
	}
	return m
}

// shown returns a fact with the wall time of its instant.
func shown(u *unit, f exit.Fact) exit.Fact {
	f.At = u.clock.Shown(f.At)
	return f
}

func runningPID(u *unit, st *state.Status) uint32 {
	if st.Phase != u.runningPhase() {
		return 0
	}
	return st.Process.Pid
}
