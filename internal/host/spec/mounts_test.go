// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"testing"
)

// The pod's own files are files of the host's runtime directory: a container could run programs
// from them with another user's rights, and make device nodes beside them.
func TestThePodsOwnFilesAreMountedWithoutDevicesOrPrograms(t *testing.T) {
	in := input()
	in.Files = map[string]string{
		"/etc/hosts":       "/pod/hosts",
		"/etc/hostname":    "/pod/hostname",
		"/etc/resolv.conf": "/pod/resolv.conf",
		"/dev/shm":         "/pod/shm",
	}
	in.Volumes = map[string]string{"/data": "/volumes/0"}
	for _, readonly := range []bool{false, true} {
		sec(&in).ReadonlyRootfs = readonly
		found := 0
		for _, m := range make1(t, in).Mounts {
			if m.Type != "bind" {
				continue
			}
			found++
			want := []string{"nosuid", "nodev", "noexec"}
			if m.Destination == "/data" {
				want = []string{"nodev"} // the image's own files, programs among them
			}
			mode := "rw"
			if readonly && m.Destination != "/dev/shm" && m.Destination != "/data" {
				mode = "ro"
			}
			for _, o := range append(want, mode) {
				if !slices.Contains(m.Options, o) {
					t.Errorf("%s, read-only root %v: %v lacks %s", m.Destination, readonly, m.Options, o)
				}
			}
		}
		if found != 5 {
			t.Errorf("%d of the files are mounted", found)
		}
	}
}
