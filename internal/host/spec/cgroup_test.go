// SPDX-License-Identifier: Apache-2.0

package spec

import "testing"

func TestTheDirectoryOfACgroupIsThatOfItsDriver(t *testing.T) {
	for _, tt := range []struct {
		systemd bool
		parent  string
		want    string // "": it is refused
	}{
		{false, "/kubepods/burstable/pod1", "/kubepods/burstable/pod1/id"},
		{false, "", "/k8s.io/id"},
		{false, "/a/../b", ""},
		{false, "/kubepods.slice", ""},
		{true, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-id.scope"},
		{true, "kubepods-besteffort.slice", "/kubepods.slice/kubepods-besteffort.slice/cri-containerd-id.scope"},
		{true, "", "/system.slice/cri-containerd-id.scope"},
		{true, "-.slice", "/cri-containerd-id.scope"},
		{true, "/kubepods", ""},
	} {
		got, err := CgroupDir(tt.systemd, tt.parent, "id")
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%q with systemd %v: %q, %v, want %q", tt.parent, tt.systemd, got, err, tt.want)
		}
	}
}
