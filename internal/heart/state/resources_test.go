// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What an update wants and what is in effect are in the record, also for the next berth.
func TestResourcesAreInTheRecord(t *testing.T) {
	s := open(t, t.TempDir())
	want := Status{
		Phase: Running,
		Resources: &Resources{
			Version: 3,
			Wanted:  &Limits{Linux: &runtimeapi.LinuxContainerResources{CpuQuota: -1, Unified: map[string]string{"memory.high": "1"}}},
			Applied: &Limits{Linux: &runtimeapi.LinuxContainerResources{CpuQuota: 50000}},
		},
		PodResources: &PodResources{Overhead: &Limits{Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 40}}},
	}
	if err := s.Commit(NewContainer(Container{ID: "c1", PodID: "p1", Config: &runtimeapi.ContainerConfig{}}, want)); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load()
	if err != nil || len(got.Containers) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if d := cmp.Diff(want, got.Containers[0].Status, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	// A newer berth may have written a field that this one does not know.
	var l Limits
	if err := l.UnmarshalJSON([]byte(`{"cpuQuota":"7","cpuBurst":"8"}`)); err != nil || l.Linux.GetCpuQuota() != 7 {
		t.Errorf("%v %v", l, err)
	}
}
