// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestCapabilitiesAreAddedAndDropped(t *testing.T) {
	all := host().Capabilities
	for _, tt := range []struct {
		name               string
		add, drop, ambient []string
		want, wantAmbient  []string
	}{
		{name: "nothing asked for", want: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW"}},
		{name: "add ALL", add: []string{"ALL"}, want: all},
		{name: "drop ALL", drop: []string{"all"}},
		{name: "add ALL and drop ALL", add: []string{"ALL"}, drop: []string{"ALL"}},
		{name: "drop ALL, then add one", add: []string{"KILL"}, drop: []string{"ALL"}, want: []string{"CAP_KILL"}},
		{name: "add ALL, then drop one", add: []string{"ALL"}, drop: []string{"SYS_ADMIN"}, want: []string{"CAP_CHOWN", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE", "CAP_KILL"}},
		{name: "add and drop the same one", add: []string{"SYS_ADMIN"}, drop: []string{"CAP_SYS_ADMIN", "ALL"}},
		{
			name: "ambient", ambient: []string{"SYS_ADMIN"}, drop: []string{"ALL"},
			want: []string{"CAP_SYS_ADMIN"}, wantAmbient: []string{"CAP_SYS_ADMIN"},
		},
		{name: "ambient and dropped", ambient: []string{"SYS_ADMIN", "KILL"}, drop: []string{"SYS_ADMIN", "KILL", "ALL"}},
		{
			name: "ambient ALL", ambient: []string{"ALL"}, add: []string{"KILL"}, drop: []string{"ALL"},
			want: []string{"CAP_KILL"}, wantAmbient: []string{"CAP_KILL"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input()
			sec(&in).Capabilities = &runtimeapi.Capability{
				AddCapabilities:        tt.add,
				DropCapabilities:       tt.drop,
				AddAmbientCapabilities: tt.ambient,
			}
			c := make1(t, in).Process.Capabilities
			for set, got := range map[string][]string{"bounding": c.Bounding, "effective": c.Effective, "permitted": c.Permitted} {
				if !sameSet(got, tt.want) {
					t.Errorf("%s: %v, want %v", set, got, tt.want)
				}
			}
			if !sameSet(c.Ambient, tt.wantAmbient) || !sameSet(c.Inheritable, tt.wantAmbient) {
				t.Errorf("ambient %v, inheritable %v, want %v", c.Ambient, c.Inheritable, tt.wantAmbient)
			}
		})
	}
}

// PROPERTIES 49: whether a container may call reboot(2) is told of its record without a host, as the
// specification has it.
func TestACapabilityIsToldWithoutAHost(t *testing.T) {
	lists := [][]string{nil, {"ALL"}, {"sys_boot"}, {"CAP_SYS_BOOT", "all"}, {"KILL"}}
	for _, privileged := range []bool{false, true} {
		for _, add := range lists {
			for _, drop := range lists {
				for _, ambient := range lists {
					in := input()
					sec(&in).Privileged = privileged
					sec(&in).Capabilities = &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop, AddAmbientCapabilities: ambient}
					h := host()
					h.Capabilities = append(h.Capabilities, "CAP_SYS_BOOT")
					var s specs.Spec
					s.Process = &specs.Process{}
					if err := capabilities(h, &s, sec(&in), nil); err != nil {
						t.Fatal(err)
					}
					if got, want := MayReboot(sec(&in)), slices.Contains(s.Process.Capabilities.Bounding, "CAP_SYS_BOOT"); got != want {
						t.Errorf("privileged %v, add %v, drop %v, ambient %v: %v", privileged, add, drop, ambient, got)
					}
				}
			}
		}
	}
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
