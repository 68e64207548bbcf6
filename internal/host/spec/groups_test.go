// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// PROPERTIES 64: a container sees control groups as it asks to, or is refused by the name of the
// field: by default, on both versions, privileged and not.
func TestAContainerSeesItsControlGroupsAsItAsks(t *testing.T) {
	const (
		unset = cri138.CgroupMountMode_CGROUP_MOUNT_MODE_UNSPECIFIED
		ro    = cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY
		rw    = cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_WRITE
		none  = runtimeapi.NamespaceMode(-1)
	)
	lacks := errors.New("mounted without nsdelegate")
	for _, tt := range []struct {
		name       string
		v2         bool
		privileged bool
		guest      bool
		delegated  error
		namespace  runtimeapi.NamespaceMode
		mount      cri138.CgroupMountMode
		want       string // own or host, with ro or rw and bind where it is; or ! and a part of the error
	}{
		{"v1", false, false, false, nil, none, unset, "host ro"},
		{"v1, privileged", false, true, false, nil, none, unset, "host rw"},
		{"v2", true, false, false, nil, none, unset, "own ro"},
		{"v2, privileged", true, true, false, nil, none, unset, "host bind rw"},
		{"v1, CONTAINER", false, false, false, nil, inContainer, unset, "own ro"},
		{"v1, CONTAINER, privileged", false, true, false, nil, inContainer, unset, "own rw"},
		{"v1, NODE", false, false, false, nil, onNode, unset, "host ro"},
		{"v2, CONTAINER", true, false, false, nil, inContainer, unset, "own ro"},
		{"v2, CONTAINER, privileged", true, true, false, nil, inContainer, unset, "own rw"},
		{"v2, NODE", true, false, false, nil, onNode, unset, "host bind ro"},
		{"v2, NODE, privileged", true, true, false, nil, onNode, unset, "host bind rw"},
		{"POD", true, false, false, nil, inPod, unset, "!cgroupns_options.mode: POD"},
		{"TARGET", false, true, false, nil, inTarget, unset, "!cgroupns_options.mode: TARGET"},
		{"unknown mode", true, false, false, nil, 77, unset, "!cgroupns_options.mode: 77"},
		{"in a guest", true, false, true, nil, inContainer, unset, "!cgroupns_options"},
		{"in a guest, unset", true, false, true, nil, none, unset, "own ro"},

		{"v1, ro", false, false, false, lacks, none, ro, "host ro"},
		{"v1, rw", false, false, false, lacks, none, rw, "!cgroup_mount_mode"},
		{"v2, ro", true, false, false, lacks, none, ro, "own ro"},
		{"v2, ro, NODE", true, false, false, nil, onNode, ro, "host bind ro"},
		{"v2, ro, privileged", true, true, false, nil, none, ro, "!cgroup_mount_mode"},
		{"v2, rw", true, false, false, nil, none, rw, "own rw"},
		{"v2, rw, CONTAINER", true, false, false, nil, inContainer, rw, "own rw"},
		{"v2, rw, NODE", true, false, false, nil, onNode, rw, "!cgroup_mount_mode"},
		{"v2, rw, NODE, privileged", true, true, false, nil, onNode, rw, "host bind rw"},
		{"v2, rw, privileged", true, true, false, nil, none, rw, "host bind rw"},
		{"v2 without nsdelegate, rw", true, false, false, lacks, none, rw, "!without nsdelegate"},
		{"v2 without nsdelegate, rw, privileged", true, true, false, lacks, none, rw, "!without nsdelegate"},
		{"in a guest, rw", true, false, true, nil, none, rw, "!cgroup_mount_mode"},
		{"unknown mount mode", true, false, false, nil, none, 9, "!cgroup_mount_mode: 9"},
	} {
		in, h := input(), host()
		h.CgroupV2, h.GroupsDelegated, in.HostProcess = tt.v2, func() error { return tt.delegated }, !tt.guest
		sc := sec(&in)
		in.Sandbox.Linux.SecurityContext.Privileged, sc.Privileged = tt.privileged, tt.privileged
		if sc.NamespaceOptions == nil {
			sc.NamespaceOptions = &runtimeapi.NamespaceOption{}
		}
		if tt.namespace != none {
			cri138.Set(sc.NamespaceOptions, &cri138.NamespaceOption{CgroupnsOptions: &cri138.CgroupNamespace{Mode: tt.namespace}})
		}
		cri138.Set(sc, &cri138.LinuxContainerSecurityContext{CgroupMountMode: tt.mount})
		s, _, err := ForContainer(h, in)
		if want, refused := strings.CutPrefix(tt.want, "!"); refused {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", tt.name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := "host"
		if has(s, specs.CgroupNamespace) {
			got = "own"
		}
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == cgroupRoot })
		if s.Mounts[i].Type == "bind" {
			got += " bind"
		}
		for _, o := range s.Mounts[i].Options {
			if o == "ro" || o == "rw" {
				got += " " + o
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// The command that mends a mount keeps its other options: a remount sets all of them.
func TestGroupsAreDelegatedByAMountOption(t *testing.T) {
	for _, tt := range []struct{ kind, options, want string }{
		{"cgroup2", "rw,nsdelegate,memory_recursiveprot", ""},
		{"cgroup2", "rw,memory_recursiveprot", "mount -o remount,memory_recursiveprot,nsdelegate /sys/fs/cgroup"},
		{"cgroup2", "rw", "mount -o remount,nsdelegate /sys/fs/cgroup"},
		{"tmpfs", "rw", "cgroup v1"},
	} {
		err := delegates(&mountinfo.Info{FSType: tt.kind, VFSOptions: tt.options})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q", tt.kind, tt.options, err, tt.want)
		}
	}
}
