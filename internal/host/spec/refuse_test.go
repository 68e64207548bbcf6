// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// named fails unless err is ErrInvalidArgument and names the field.
func named(t *testing.T, field string, err error) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), field) {
		t.Errorf("%s: got %v", field, err)
	}
}

// Mount options were ignored: a volume that was to be mounted nosuid or noexec was not. What lifts
// a restriction of the host's, or changes what another field says, is refused. PROPERTIES 22.
func TestMountOptionsAreGivenOrRefused(t *testing.T) {
	in := input()
	in.Config.Mounts = []*runtimeapi.Mount{{
		ContainerPath: "/data",
		HostPath:      "/x",
		Readonly:      true,
		MountOptions:  []string{"noexec", "nosuid", "nodev"},
	}}
	found := false
	for _, m := range make1(t, in).Mounts {
		if m.Destination != "/data" {
			continue
		}
		found = true
		for _, o := range []string{"rbind", "ro", "noexec", "nosuid", "nodev"} {
			if !slices.Contains(m.Options, o) {
				t.Errorf("%v lacks %s", m.Options, o)
			}
		}
	}
	if !found {
		t.Error("it is not mounted")
	}
	for _, o := range []string{"", "suid", "dev", "exec", "rw", "remount", "rshared", "size=1k", "nosuid,dev", "idmap", "tmpcopyup"} {
		in.Config.Mounts[0].MountOptions = []string{"noexec", o}
		named(t, "mount_options", CheckContainer(in.Config))
	}
}

// On an older kernel the container failed when it was started, without a word about the mount.
func TestARecursiveReadOnlyMountNeedsTheKernel(t *testing.T) {
	in := input()
	in.Config.Mounts = []*runtimeapi.Mount{{
		ContainerPath:     "/data",
		HostPath:          "/x",
		Readonly:          true,
		RecursiveReadOnly: true,
	}}
	h := host()
	if _, _, err := ForContainer(h, in); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "recursive_read_only") {
		t.Errorf("without the kernel: %v", err)
	}
	h.RecursiveReadOnly = true
	s, _, err := ForContainer(h, in)
	if err != nil {
		t.Fatal(err)
	}
	if m := s.Mounts[len(s.Mounts)-1]; !slices.Contains(m.Options, "rro") {
		t.Errorf("%+v", m)
	}
}

// A mapping that led nowhere was dropped, and so was one of a pod on the host's network.
func TestPortsThatCannotBeMappedAreRefused(t *testing.T) {
	onHost := &runtimeapi.NamespaceOption{Network: onNode}
	for _, tt := range []struct {
		name string
		ns   *runtimeapi.NamespaceOption
		port *runtimeapi.PortMapping
		want string // the field; "" where it is not refused
	}{
		{name: "a port", port: &runtimeapi.PortMapping{HostPort: 80, ContainerPort: 8080, HostIp: "::1"}},
		{name: "none on the host", port: &runtimeapi.PortMapping{ContainerPort: 8080}},
		{name: "out of range", port: &runtimeapi.PortMapping{HostPort: 65536, ContainerPort: 1}, want: "port_mappings"},
		{name: "negative", port: &runtimeapi.PortMapping{HostPort: 1, ContainerPort: -1}, want: "port_mappings"},
		{name: "none in the pod", port: &runtimeapi.PortMapping{HostPort: 1}, want: "container_port"},
		{name: "no protocol", port: &runtimeapi.PortMapping{ContainerPort: 1, Protocol: 9}, want: "protocol"},
		{name: "no address", port: &runtimeapi.PortMapping{ContainerPort: 1, HostIp: "localhost"}, want: "host_ip"},
		{name: "to itself on the host", ns: onHost, port: &runtimeapi.PortMapping{HostPort: 80, ContainerPort: 80}},
		{name: "another on the host", ns: onHost, port: &runtimeapi.PortMapping{HostPort: 80, ContainerPort: 8080}, want: "host_port"},
	} {
		err := CheckSandbox(&runtimeapi.PodSandboxConfig{
			PortMappings: []*runtimeapi.PortMapping{tt.port},
			Linux:        &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: tt.ns}},
		})
		if tt.want != "" {
			named(t, tt.want, err)
		} else if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Some were ignored, others failed when the container was started.
func TestResourcesThatCannotBeAreRefused(t *testing.T) {
	for field, r := range map[string]*runtimeapi.LinuxContainerResources{
		"cpu_period":                 {CpuPeriod: -1},
		"cpu_quota":                  {CpuQuota: -2},
		"cpu_shares":                 {CpuShares: -1},
		"memory_limit_in_bytes":      {MemoryLimitInBytes: -1},
		"memory_swap_limit_in_bytes": {MemorySwapLimitInBytes: 1 << 30, MemoryLimitInBytes: 1 << 31},
		"oom_score_adj":              {OomScoreAdj: 1001},
		"cpuset_cpus":                {CpusetCpus: "0-"},
		"cpuset_mems":                {CpusetMems: "all"},
		"unified":                    {Unified: map[string]string{"../memory.max": "max"}},
		"is a limit of memory and":   {MemorySwapLimitInBytes: 1},
	} {
		cfg := input().Config
		cfg.Linux.Resources = r
		named(t, field, CheckContainer(cfg))
		_, _, err := LinuxResources(host(), r) // what an update asks for is checked, too
		named(t, field, err)
	}
	good := &runtimeapi.LinuxContainerResources{
		CpuPeriod:              100000,
		CpuQuota:               -1,
		CpusetCpus:             "0-3,7",
		CpusetMems:             "0",
		MemoryLimitInBytes:     1 << 20,
		MemorySwapLimitInBytes: -1,
		OomScoreAdj:            -1000,
		Unified:                map[string]string{"memory.high": "max", "hugetlb.2MB.max": "0"},
	}
	if err := checkResources(good); err != nil {
		t.Error(err)
	}
}

func TestLimitsOfTrafficAreReadFromTheAnnotations(t *testing.T) {
	const ingress, egress = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"
	b, err := BandwidthOf(map[string]string{ingress: "10M", egress: "1Gi", "other": "x"})
	if err != nil || b != (Bandwidth{Ingress: 10_000_000, Egress: 1 << 30}) {
		t.Errorf("%+v %v", b, err)
	}
	if b, err := BandwidthOf(nil); err != nil || b != (Bandwidth{}) {
		t.Errorf("without any: %+v %v", b, err)
	}
	for _, v := range []string{"", "fast", "999", "-1M", "2P", "1e99"} {
		named(t, egress, CheckSandbox(&runtimeapi.PodSandboxConfig{Annotations: map[string]string{egress: v}}))
	}
}

func TestWhatASandboxCannotBeIsRefused(t *testing.T) {
	id := func(n int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: n} }
	for field, sec := range map[string]*runtimeapi.LinuxSandboxSecurityContext{
		"run_as_group":                {RunAsGroup: id(1)},
		"run_as_user":                 {RunAsUser: id(-1)},
		"supplemental_groups":         {SupplementalGroups: []int64{1 << 40}},
		"supplemental_groups_policy":  {SupplementalGroupsPolicy: 9},
		"namespace_options.target_id": {NamespaceOptions: &runtimeapi.NamespaceOption{TargetId: "c"}},
	} {
		named(t, field, CheckSandbox(&runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: sec}}))
	}
	negative := &runtimeapi.LinuxContainerResources{CpuShares: -1}
	named(t, "overhead: linux.cpu_shares", CheckSandbox(&runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{Overhead: negative}}))
	named(t, "resources: linux.cpu_shares", CheckSandbox(&runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{Resources: negative}}))
}

func TestWhatAContainerCannotBeIsRefused(t *testing.T) {
	for field, edit := range map[string]func(*runtimeapi.ContainerConfig){
		"stop_signal":    func(c *runtimeapi.ContainerConfig) { c.StopSignal = 999 },
		"masked_paths":   func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.MaskedPaths = []string{"proc"} },
		"readonly_paths": func(c *runtimeapi.ContainerConfig) { c.Linux.SecurityContext.ReadonlyPaths = []string{"/a\x00"} },
		"target_id": func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{TargetId: "c"}
		},
	} {
		cfg := input().Config
		edit(cfg)
		named(t, field, CheckContainer(cfg))
	}
}

// What was made of a specification is what the status reports. PROPERTIES 22.
func TestWhatASpecificationHasIsReported(t *testing.T) {
	in := input()
	sec(&in).RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	asked := &runtimeapi.LinuxContainerResources{
		CpuPeriod:              100000,
		CpuQuota:               50000,
		CpuShares:              512,
		MemoryLimitInBytes:     1 << 20,
		MemorySwapLimitInBytes: 1 << 21,
		OomScoreAdj:            500,
		CpusetCpus:             "0-1",
		CpusetMems:             "0",
		HugepageLimits:         []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1 << 21}},
		Unified:                map[string]string{"memory.high": "max"},
	}
	in.Config.Linux.Resources = asked
	h := host()
	h.CgroupV2, h.SwapAccounting, h.HugePages = true, true, []string{"2MB"}
	s, _, err := ForContainer(h, in)
	if err != nil {
		t.Fatal(err)
	}
	if got := ResourcesOf(s); got.String() != asked.String() {
		t.Errorf("got  %v\nwant %v", got, asked)
	}
	u := UserOf(s)
	if u.GetUid() != 1000 || u.GetGid() != 1001 || !slices.Equal(u.GetSupplementalGroups(), []int64{1001, 10}) {
		t.Errorf("user %v", u)
	}
}
