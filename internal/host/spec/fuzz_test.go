// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"
)

// A seccomp profile that can be read has actions that exist, or is ErrInvalidArgument.
func FuzzSeccomp(f *testing.F) {
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","archMap":[{"architecture":"SCMP_ARCH_X86_64","subArchitectures":["SCMP_ARCH_X86"]}],"syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"name":"kexec_load","action":"SCMP_ACT_ERRNO","excludes":{"caps":["CAP_SYS_BOOT"]}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseSeccomp(b, "amd64")
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v is not ErrInvalidArgument", err)
			}
			return
		}
		for _, r := range p.Syscalls {
			if !slices.Contains(seccompActions, r.Action) {
				t.Errorf("%q has the action %q", b, r.Action)
			}
		}
	})
}
