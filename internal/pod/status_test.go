// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/state"
)

// Without a wish of its own the limit of memory and swap together is that of memory, also once an
// update has changed it.
func TestSwapFollowsTheMemoryLimitInTheStatus(t *testing.T) {
	const before, after = 64 << 20, 128 << 20
	st := &state.Status{
		Applied: &state.Applied{Resources: &runtimeapi.LinuxContainerResources{
			CpuShares:              512,
			MemoryLimitInBytes:     before,
			MemorySwapLimitInBytes: before,
		}},
		Resources: &state.Resources{
			Version: 1,
			Applied: &state.Limits{Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: after}},
		},
	}
	for asked, want := range map[int64]int64{0: after, before: before} {
		cfg := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{MemorySwapLimitInBytes: asked},
		}}
		got := effective(&unit{container: &state.Container{Config: cfg}}, st)
		if got.GetMemoryLimitInBytes() != after || got.GetMemorySwapLimitInBytes() != want || got.GetCpuShares() != 512 {
			t.Errorf("asked for swap %d: %v, want swap %d", asked, got, want)
		}
	}
}
