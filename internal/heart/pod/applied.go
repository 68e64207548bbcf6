// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// appliedOf returns what the record of a container says of its specification, after the hooks have
// changed it.
func appliedOf(oci *specs.Spec) *state.Applied {
	return &state.Applied{User: spec.UserOf(oci), Resources: spec.ResourcesOf(oci)}
}

// effective returns what a container is known to have: what it was made with, and what updates have
// changed since. Of a container that an earlier berth made, only what was asked for is known; it is
// nil if nothing was.
func effective(u *unit, st *state.Status) *runtimeapi.LinuxContainerResources {
	asked := u.container.Config.GetLinux().GetResources()
	has := asked
	if st.Applied != nil && st.Applied.Resources != nil {
		has = st.Applied.Resources
	}
	if st.Resources == nil || st.Resources.Applied == nil {
		return has
	}
	updates := limits(st.Resources.Applied)
	now := spec.MergeResources(has, updates)
	if has.GetMemorySwapLimitInBytes() != 0 && spec.MergeResources(asked, updates).GetMemorySwapLimitInBytes() == 0 {
		now.MemorySwapLimitInBytes = now.GetMemoryLimitInBytes() // nobody has asked for swap: it follows the limit
	}
	return now
}

func noteDegraded(obs Observer, u *unit, degraded []spec.Degraded) {
	for _, d := range degraded {
		obs.Note(u.id, event.Degraded{What: d.What, Why: d.Why})
	}
}

// limits returns the message of l, which may be nil.
func limits(l *state.Limits) *runtimeapi.LinuxContainerResources {
	if l == nil {
		return nil
	}
	return l.Linux
}
