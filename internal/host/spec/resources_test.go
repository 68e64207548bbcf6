// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The kubelet sends a limit of 0 for each page size of the node with every container. On a host
// without the hugetlb controller the OCI runtime could not write it, and no container started.
func TestAHugepageLimitOfZeroNeedsNoController(t *testing.T) {
	in := input()
	in.Config.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{
		{PageSize: "2MB"},
		{PageSize: "1GB"},
	}
	s, degraded, err := ForContainer(host(), in)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Linux.Resources.HugepageLimits; len(got) != 0 {
		t.Errorf("the OCI runtime is asked to write %v", got)
	}
	if len(degraded) != 1 || !strings.Contains(degraded[0].What, "2MB, 1GB") || degraded[0].Why == "" {
		t.Errorf("degraded: %v", degraded)
	}

	h := host()
	h.HugePages = []string{"2MB"}
	s, degraded, err = ForContainer(h, in)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Linux.Resources.HugepageLimits; len(got) != 1 || got[0].Pagesize != "2MB" || len(degraded) != 1 {
		t.Errorf("limits %v, degraded %v", got, degraded)
	}
}

// A pod with hugepages never ran on a host without the hugetlb controller, where containerd runs it
// without the limit: so does berth, and says so.
func TestAHugepageLimitIsLeftOutWithoutTheController(t *testing.T) {
	in := input()
	in.Config.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{
		{PageSize: "2MB", Limit: 4 << 20},
		{PageSize: "1GB"},
	}
	s, degraded, err := ForContainer(host(), in)
	if err != nil || len(s.Linux.Resources.HugepageLimits) != 0 || len(degraded) != 2 {
		t.Fatalf("%v %v", degraded, err)
	}
	if d := degraded[0]; d.What != "hugepage limit of 4194304 bytes for 2MB" || !strings.Contains(d.Why, "hugetlb") {
		t.Errorf("%+v", d)
	}
	asked := in.Config.Linux.Resources
	asked.CpuShares = 7
	kept, degraded, err := KeptPages(host(), asked)
	if err != nil || len(kept.GetHugepageLimits()) != 0 || kept.GetCpuShares() != 7 || len(degraded) != 2 || len(asked.HugepageLimits) != 2 {
		t.Errorf("%v %v %v", kept, degraded, err)
	}
}

// PROPERTIES 22: where the administrator wants it, and for a page size that the controller does not
// know, a limit that cannot be kept is refused.
func TestAHugepageLimitThatCannotBeKeptIsRefused(t *testing.T) {
	in := input()
	in.Config.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}
	without, other := host(), host()
	without.RequireHugetlb = true
	other.HugePages = []string{"1GB"}
	for _, h := range []Host{without, other} {
		_, _, err := ForContainer(h, in)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "hugetlb") || !strings.Contains(err.Error(), "2MB") {
			t.Errorf("controller of %q: %v", h.HugePages, err)
		}
	}
	h := host()
	h.HugePages = []string{"2MB"}
	s, degraded, err := ForContainer(h, in)
	if err != nil || len(degraded) != 0 {
		t.Fatalf("%v %v", degraded, err)
	}
	if got := s.Linux.Resources.HugepageLimits; len(got) != 1 || got[0].Limit != 4<<20 {
		t.Errorf("limits %v", got)
	}
	for _, size := range []string{"", "2M", "../x", "2MB/../.."} {
		in.Config.Linux.Resources.HugepageLimits[0] = &runtimeapi.HugepageLimit{PageSize: size}
		_, _, err = ForContainer(h, in)
		refused(t, "page size "+size, err)
	}
}

func TestPageSizesAreSpelledAsTheControllerSpellsThem(t *testing.T) {
	for dir, want := range map[string]string{
		"hugepages-64kB":       "64KB",
		"hugepages-2048kB":     "2MB",
		"hugepages-1048576kB":  "1GB",
		"hugepages-16777216kB": "16GB",
		"hugepages-x":          "",
		"other":                "",
	} {
		if got := pageSize(dir); got != want {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
}
