// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
)

// Whatever adjustment a plug-in sends, it is made or refused, and the cgroup of the container and
// the namespaces of its pod stay as they are.
func FuzzAdjust(f *testing.F) {
	for _, a := range []*api.ContainerAdjustment{
		{Env: []*api.KeyValue{{Key: "A", Value: "b"}}, Args: []string{"sh"}},
		{Mounts: []*api.Mount{{Destination: "/a", Source: "/b"}}, Linux: &api.LinuxContainerAdjustment{CgroupsPath: "/x"}},
		{Hooks: &api.Hooks{Prestart: []*api.Hook{nil}}, Rlimits: []*api.POSIXRlimit{{Type: "RLIMIT_CORE"}}},
	} {
		b, err := proto.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	oci := &specs.Spec{Process: &specs.Process{Args: []string{"a"}}, Linux: &specs.Linux{
		CgroupsPath: "/pods/c", Namespaces: []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: "/run/netns/a"}},
	}}
	f.Fuzz(func(t *testing.T, b []byte) {
		a := &api.ContainerAdjustment{}
		if proto.Unmarshal(b, a) != nil {
			return
		}
		after, err := (&Service{}).adjust(oci, a)
		if err == nil && (after.Linux.CgroupsPath != "/pods/c" || namespace(after, specs.NetworkNamespace) != "at /run/netns/a") {
			t.Errorf("%v makes %+v", a, after.Linux)
		}
	})
}
