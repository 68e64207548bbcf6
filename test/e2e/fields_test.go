// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// The policy was advertised together with the user of the status, which was missing. PROPERTIES 22.
func TestSupplementalGroupsFollowTheirPolicy(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil || !st.GetFeatures().GetSupplementalGroupsPolicy() {
			t.Fatalf("it is not advertised: %v %v", st, err)
		}
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		for policy, want := range map[runtimeapi.SupplementalGroupsPolicy][]int64{
			runtimeapi.SupplementalGroupsPolicy_Merge:  {50, 1000, 1234}, // the image has 1000 in 50
			runtimeapi.SupplementalGroupsPolicy_Strict: {1000, 1234},
		} {
			c := node.ContainerConfig(strings.ToLower(policy.String()), "id", "-G")
			c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
			c.Linux.SecurityContext.SupplementalGroups = []int64{1234}
			c.Linux.SecurityContext.SupplementalGroupsPolicy = policy
			id := n.Run(pod, cfg, c)
			n.Ended(id)
			got := n.Container(id).GetUser().GetLinux()
			groups := slices.Sorted(slices.Values(got.GetSupplementalGroups()))
			if got.GetUid() != 1000 || got.GetGid() != 1000 || !slices.Equal(groups, want) {
				t.Errorf("%s: the status has %v, want the groups %v", policy, got, want)
			}
			var in []int64
			for _, f := range strings.Fields(n.Log(id)) {
				g, err := strconv.ParseInt(f, 10, 64)
				if err != nil {
					t.Error(err)
				}
				in = append(in, g)
			}
			if slices.Sort(in); !slices.Equal(in, want) {
				t.Errorf("%s: the process is in the groups %v, want %v", policy, in, want)
			}
		}
	})
}

// Mount options were ignored; recursive read-only mounts were given and not advertised.
// PROPERTIES 22.
func TestMountsHaveTheOptionsThatWereAskedFor(t *testing.T) {
	t.Parallel()
	node.Both(t, func(t *testing.T, n *node.Node) {
		var features *runtimeapi.RuntimeHandlerFeatures
		n.Until("the runtime was asked for its features", func() bool {
			st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if !st.GetFeatures().GetMountOptions() {
				t.Fatal("mount options are not advertised")
			}
			for _, h := range st.GetRuntimeHandlers() {
				if h.GetName() == "" {
					features = h.GetFeatures()
				}
			}
			return features.GetRecursiveReadOnlyMounts()
		})
		cfg := n.PodConfig()
		pod := n.Pod(cfg)
		c := node.ContainerConfig("c", "grep", "-E", " /(options|recursive) ", "/proc/self/mountinfo")
		c.Mounts = []*runtimeapi.Mount{
			{
				ContainerPath: "/options",
				HostPath:      t.TempDir(),
				MountOptions:  []string{"noexec", "nosuid", "nodev"},
			},
			{
				ContainerPath:     "/recursive",
				HostPath:          t.TempDir(),
				Readonly:          true,
				RecursiveReadOnly: true,
			},
		}
		id := n.Run(pod, cfg, c)
		node.ExpectExit(t, n.Ended(id), 0, "Completed")
		for line := range strings.Lines(n.Log(id)) {
			options := strings.Split(strings.Fields(line)[5], ",")
			want := []string{"noexec", "nosuid", "nodev"}
			if strings.Contains(line, " /recursive ") {
				want = []string{"ro"}
			}
			for _, o := range want {
				if !slices.Contains(options, o) {
					t.Errorf("%s lacks %s", strings.TrimSpace(line), o)
				}
			}
		}
		if got := strings.Count(n.Log(id), "\n"); got != 2 {
			t.Errorf("%d mounts: %s", got, n.Log(id))
		}
	})
}
