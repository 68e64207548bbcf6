// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func pages(size string, limit uint64) *runtimeapi.HugepageLimit {
	return &runtimeapi.HugepageLimit{PageSize: size, Limit: limit}
}

func TestMergeResourcesKeepsWhatIsNotSet(t *testing.T) {
	base := &runtimeapi.LinuxContainerResources{
		CpuPeriod:      100000,
		CpuQuota:       50000,
		CpusetCpus:     "0",
		HugepageLimits: []*runtimeapi.HugepageLimit{pages("2MB", 4), pages("1GB", 8)},
		Unified:        map[string]string{"memory.high": "1", "io.weight": "50"},
	}
	was := proto.CloneOf(base)
	change := &runtimeapi.LinuxContainerResources{
		CpuQuota:       -1,
		HugepageLimits: []*runtimeapi.HugepageLimit{pages("2MB", 0)},
		Unified:        map[string]string{"memory.high": "2"},
	}
	got := MergeResources(base, change)
	want := &runtimeapi.LinuxContainerResources{
		CpuPeriod:      100000,
		CpuQuota:       -1,
		CpusetCpus:     "0",
		HugepageLimits: []*runtimeapi.HugepageLimit{pages("1GB", 8), pages("2MB", 0)},
		Unified:        map[string]string{"memory.high": "2", "io.weight": "50"},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !proto.Equal(base, was) {
		t.Errorf("the base was changed to %v", base)
	}
	if got := MergeResources(nil, nil); proto.Size(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestUpdatedResourcesAreThoseThatTheUpdateSets(t *testing.T) {
	config := &runtimeapi.LinuxContainerResources{
		CpuPeriod:          100000,
		CpuQuota:           50000,
		CpuShares:          512,
		MemoryLimitInBytes: 64 << 20,
		CpusetCpus:         "0",
		Unified:            map[string]string{"memory.high": "1"},
		HugepageLimits:     []*runtimeapi.HugepageLimit{pages("2MB", 0)},
	}
	v2 := host()
	v2.CgroupV2, v2.SwapAccounting, v2.HugePages = true, true, []string{"2MB"}
	for _, tt := range []struct {
		updates *runtimeapi.LinuxContainerResources
		want    string
	}{
		{&runtimeapi.LinuxContainerResources{}, `{"memory":{},"cpu":{}}`},
		{&runtimeapi.LinuxContainerResources{CpusetCpus: "1"}, `{"memory":{},"cpu":{"cpus":"1"}}`},
		{&runtimeapi.LinuxContainerResources{CpuQuota: -1, CpuShares: 2}, `{"memory":{},"cpu":{"shares":2,"quota":-1}}`},
		// No swap beyond the memory limit; a limit for both needs the memory limit with it.
		{&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}, `{"memory":{"limit":33554432,"swap":33554432},"cpu":{}}`},
		{&runtimeapi.LinuxContainerResources{MemorySwapLimitInBytes: 96 << 20}, `{"memory":{"limit":67108864,"swap":100663296},"cpu":{}}`},
		{&runtimeapi.LinuxContainerResources{Unified: map[string]string{"cpu.max": "max"}}, `{"memory":{},"cpu":{},"unified":{"cpu.max":"max"}}`},
		{
			&runtimeapi.LinuxContainerResources{HugepageLimits: []*runtimeapi.HugepageLimit{pages("2MB", 2<<20)}},
			`{"memory":{},"cpu":{},"hugepageLimits":[{"pageSize":"2MB","limit":2097152}]}`,
		},
	} {
		got, degraded, err := UpdatedResources(v2, config, tt.updates)
		if err != nil || len(degraded) != 0 {
			t.Errorf("%v: %v %v", tt.updates, degraded, err)
			continue
		}
		if b, _ := json.Marshal(got); string(b) != tt.want {
			t.Errorf("%v: got %s, want %s", tt.updates, b, tt.want)
		}
	}
	// On cgroup v1 there are no unified settings; that is said once, when they are asked for.
	if _, degraded, err := UpdatedResources(host(), config, &runtimeapi.LinuxContainerResources{CpuQuota: 1}); err != nil || len(degraded) != 0 {
		t.Errorf("%v %v", degraded, err)
	}
	if _, degraded, err := UpdatedResources(host(), config, &runtimeapi.LinuxContainerResources{Unified: map[string]string{"cpu.max": "max"}}); err != nil || len(degraded) != 1 {
		t.Errorf("%v %v", degraded, err)
	}
	if _, _, err := UpdatedResources(v2, config, &runtimeapi.LinuxContainerResources{MemorySwapLimitInBytes: 32 << 20}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("less swap than memory: %v", err)
	}
}

// What an extension of the node has set stays.
func TestChangeResourcesKeepsTheRest(t *testing.T) {
	weight, limit, quota := uint16(7), int64(5), int64(1000)
	s := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{
		BlockIO:        &specs.LinuxBlockIO{Weight: &weight},
		Pids:           &specs.LinuxPids{Limit: &limit},
		CPU:            &specs.LinuxCPU{Cpus: "0", Mems: "0"},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}, {Pagesize: "1GB", Limit: 1}},
		Unified:        map[string]string{"a": "1", "b": "1"},
	}}}
	ChangeResources(s, &specs.LinuxResources{
		CPU:            &specs.LinuxCPU{Quota: &quota, Cpus: "1"},
		Memory:         &specs.LinuxMemory{Limit: &limit},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 2}},
		Unified:        map[string]string{"b": "2"},
	})
	const want = `{"memory":{"limit":5},"cpu":{"quota":1000,"cpus":"1","mems":"0"},"pids":{"limit":5},"blockIO":{"weight":7},` +
		`"hugepageLimits":[{"pageSize":"1GB","limit":1},{"pageSize":"2MB","limit":2}],"unified":{"a":"1","b":"2"}}`
	if b, _ := json.Marshal(s.Linux.Resources); string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	empty := &specs.Spec{}
	ChangeResources(empty, &specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: &quota}, Memory: &specs.LinuxMemory{}})
	if *empty.Linux.Resources.CPU.Quota != quota {
		t.Errorf("%+v", empty.Linux.Resources)
	}
}

// What a refused change may have set goes back to what the container had, and a limit that it did not
// have is lifted. What the change did not set is left alone.
func TestRestoredResourcesTakeBackAChange(t *testing.T) {
	type res = runtimeapi.LinuxContainerResources
	had := &res{CpuPeriod: 100000, CpuShares: 512, MemoryLimitInBytes: 64 << 20, CpusetCpus: "0-1"}
	unlimited, half := int64(-1), uint64(512)
	memory, quota := int64(64<<20), int64(50000)
	for name, c := range map[string]struct {
		config, updates, change *res
		want                    *specs.LinuxResources
	}{
		"what it was made with": {had, nil, &res{CpuShares: 2, MemoryLimitInBytes: 1 << 20}, &specs.LinuxResources{
			CPU:    &specs.LinuxCPU{Shares: &half},
			Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		}},
		"what was changed since": {had, &res{CpuQuota: quota}, &res{CpuQuota: 70000, CpusetCpus: "0"}, &specs.LinuxResources{
			CPU:    &specs.LinuxCPU{Quota: &quota, Cpus: "0-1"},
			Memory: &specs.LinuxMemory{},
		}},
		"limits that it did not have": {&res{}, nil, &res{CpuQuota: 70000, MemoryLimitInBytes: 1 << 20, CpusetCpus: "0"}, &specs.LinuxResources{
			CPU:    &specs.LinuxCPU{Quota: &unlimited},
			Memory: &specs.LinuxMemory{Limit: &unlimited, Swap: &unlimited},
		}},
	} {
		got, err := RestoredResources(Host{SwapAccounting: true}, c.config, c.updates, c.change)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
