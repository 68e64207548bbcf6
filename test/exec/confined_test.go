// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// compare runs the probe both ways in a container.
func compare(t *testing.T, ct *container) {
	t.Helper()
	for _, how := range []string{"report", "kill"} {
		want, wantCode, err := ct.inside(byOCI, "/probe", how)
		if err != nil {
			t.Fatal(err)
		}
		got, code, err := ct.inside(byHelper, "/probe", how)
		if err != nil {
			t.Fatal(err)
		}
		if d := ct.differences(want, got); d != "" || code != wantCode || len(want) < 50 {
			t.Errorf("%s: code %d, by the OCI runtime %d%s", how, code, wantCode, d)
		}
	}
	if d := ct.differences(ct.outside(byOCI, "/probe", "hold"), ct.outside(byHelper, "/probe", "hold")); d != "" {
		t.Errorf("from outside:%s", d)
	}
}

// PROPERTIES 45: the labels of the kernel's security modules, of which a guest has one or the
// other.
func TestAProgramHasTheLabelThatTheOCIRuntimeGivesIt(t *testing.T) {
	guest := os.Getenv("BERTH_GUEST")
	var changes []func(s *specs.Spec, rootfs string)
	switch _, err := os.Stat("/sys/kernel/security/apparmor"); {
	case guest == "selinux":
		const label = "system_u:system_r:container_t:s0:c1,c2"
		changes = append(changes, func(s *specs.Spec, rootfs string) {
			s.Process.SelinuxLabel = label
			_ = filepath.Walk(rootfs, func(p string, _ os.FileInfo, _ error) error {
				return unix.Lsetxattr(p, "security.selinux", []byte("system_u:object_r:container_file_t:s0:c1,c2\x00"), 0)
			})
			s.Linux.MountLabel = "system_u:object_r:container_file_t:s0:c1,c2"
		})
	case err == nil:
		if err := apparmor.LoadDefaultProfile("berth-exec-test"); err != nil {
			t.Fatal(err)
		}
		changes = append(changes,
			func(s *specs.Spec, _ string) { s.Process.ApparmorProfile = "berth-exec-test" },
			func(s *specs.Spec, _ string) {
				s.Process.ApparmorProfile, s.Process.NoNewPrivileges, s.Process.User.UID = "berth-exec-test", true, 1000
				s.Linux.Seccomp = allowList()
			},
			func(s *specs.Spec, rootfs string) {
				userns(s, rootfs)
				s.Process.ApparmorProfile = "berth-exec-test"
			})
	case guest != "":
		t.Fatal("the guest has neither AppArmor nor SELinux: it proves nothing")
	default:
		t.Skip("this kernel has neither AppArmor nor SELinux; the guests have")
	}
	for _, change := range changes {
		compare(t, start(t, change))
	}
}
