// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// appliedOf returns the values of a container's final specification, after the hooks, that its
// record keeps.
func appliedOf(oci *specs.Spec) *state.Applied {
	return &state.Applied{User: spec.UserOf(oci), Resources: spec.ResourcesOf(oci)}
}

// effective returns the known resources of a container: those it was made with, and the changes by
// updates since. If an earlier berth made the container, only the requested resources are known; it
// returns nil if there were none.
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
		// without a request for swap, it follows the memory limit
		now.MemorySwapLimitInBytes = now.GetMemoryLimitInBytes()
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
