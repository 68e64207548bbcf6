// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/exit"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// asUser configures a container that runs as a user, with groups of the request's own, and with
// resources some of which the host of these tests cannot give.
func asUser(name string) *runtimeapi.ContainerConfig {
	cfg := ctr(name)
	cfg.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	cfg.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 2000}
	cfg.Linux.SecurityContext.SupplementalGroups = []int64{3000}
	cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{
		CpuShares:          512,
		MemoryLimitInBytes: 64 << 20,
		OomScoreAdj:        -999,
		HugepageLimits:     []*runtimeapi.HugepageLimit{{PageSize: "2MB"}},
		Unified:            map[string]string{"memory.high": "1"},
	}
	return cfg
}

// appliedStatus returns what the status of a container of asUser says on a host without hugetlb and
// cgroup v2.
func appliedStatus() *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		User: &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
			Uid:                1000,
			Gid:                2000,
			SupplementalGroups: []int64{2000, 3000},
		}},
		Resources: &runtimeapi.ContainerResources{Linux: &runtimeapi.LinuxContainerResources{
			CpuShares:          512,
			MemoryLimitInBytes: 64 << 20,
			OomScoreAdj:        -999,
		}},
	}
}

func expectApplied(t *testing.T, b *bubble, id string, want *runtimeapi.ContainerStatus) {
	t.Helper()
	resp, err := b.ContainerStatus(t.Context(), id, false)
	if err != nil {
		t.Fatal(err)
	}
	got := &runtimeapi.ContainerStatus{User: resp.GetStatus().GetUser(), Resources: resp.GetStatus().GetResources()}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

// The user was never reported, and the resources were reported as they were asked for, also those
// that the host did not give. PROPERTIES 22.
func TestAStatusHasTheUserAndTheResourcesThatTheContainerHas(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p", "")
		id := b.create(p, asUser("c"))
		expectApplied(t, b, id, appliedStatus())
		if err := b.StartContainer(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		expectApplied(t, b, id, appliedStatus())

		// The record has gone through the disk, and the next berth knows nothing else.
		loaded := b.Records()
		for i := range loaded.Containers {
			raw, err := json.Marshal(loaded.Containers[i].Status)
			if err != nil {
				t.Fatal(err)
			}
			var st state.Status
			if err := json.Unmarshal(raw, &st); err != nil {
				t.Fatal(err)
			}
			loaded.Containers[i].Status = st
		}
		b.stop()
		b = restart(t, b.World, loaded)
		expectApplied(t, b, id, appliedStatus())
		b.exit(id, 0)
		synctest.Wait()
		expectApplied(t, b, id, appliedStatus())
	})
}

// changing is a plug-in that changes what a container is made with.
type changing struct{}

func (changing) AdjustSpec(_ context.Context, _ pod.Target, _ *runtimeapi.ContainerConfig, s *specs.Spec) error {
	shares := uint64(7)
	s.Linux.Resources.CPU.Shares = &shares
	s.Process.User.UID = 5
	return nil
}
func (changing) SandboxRun(context.Context, pod.Target) error       { return nil }
func (changing) Created(context.Context, pod.Target)                {}
func (changing) Starting(context.Context, pod.Target) error         { return nil }
func (changing) Started(context.Context, pod.Target)                {}
func (changing) Ended(context.Context, pod.Target, exit.Fact) error { return nil }

func TestAStatusHasWhatAPluginChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, world.Free(), state.Loaded{}, withHooks(changing{}))
		p := b.pod("p", "")
		id := b.create(p, asUser("c"))
		want := appliedStatus()
		want.User.Linux.Uid, want.Resources.Linux.CpuShares = 5, 7
		expectApplied(t, b, id, want)
	})
}

// A pod that left the modes of its namespaces out was reported as one whose namespaces are not
// known.
func TestASandboxReportsTheNamespacesThatItHas(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		cfg := config("p")
		cfg.Linux = nil
		id, err := b.RunPodSandbox(t.Context(), cfg, "")
		if err != nil {
			t.Fatal(err)
		}
		resp, err := b.PodSandboxStatus(t.Context(), id, false)
		if err != nil {
			t.Fatal(err)
		}
		want := &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}}
		if d := cmp.Diff(want, resp.GetStatus().GetLinux().GetNamespaces().GetOptions(), protocmp.Transform()); d != "" {
			t.Error(d)
		}
	})
}

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
		got := pod.Effective(&state.Container{Config: cfg}, st)
		if got.GetMemoryLimitInBytes() != after || got.GetMemorySwapLimitInBytes() != want || got.GetCpuShares() != 512 {
			t.Errorf("asked for swap %d: %v, want swap %d", asked, got, want)
		}
	}
}
