// SPDX-License-Identifier: Apache-2.0

package join

import (
	"encoding/binary"
	"strings"
	"testing"
)

// Tables of mounts and of control groups, in which names are others' choice, never make berth join
// a group above or beside that of the container.
func FuzzGroups(f *testing.F) {
	mounts := "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	f.Add(mounts, []byte("4:memory:/kubepods/a\n0::/kubepods/a\n"), []byte("0::/\n"), "/kubepods/a")
	f.Add("1 2 3 / /sys/fs/cgroup - cgroup2", []byte("0::/../..\n"), []byte(""), "/../..")
	f.Fuzz(func(t *testing.T, mounts string, of, own []byte, path string) {
		g, err := groupsOf(path, parseHierarchies(mounts), membership(of), membership(own))
		if err != nil {
			return
		}
		for _, dir := range append(g.legacy, g.unified) {
			if dir != "" && !strings.HasPrefix(dir, "/sys/fs/cgroup") {
				t.Errorf("%q is a group of %q", dir, path)
			}
		}
	})
}

// A filter that cannot be run is an error, and none runs for ever.
func FuzzFilter(f *testing.F) {
	instruction := func(op uint16, jt, jf byte, k uint32) []byte {
		b := binary.NativeEndian.AppendUint16(nil, op)
		return binary.NativeEndian.AppendUint32(append(b, jt, jf), k)
	}
	f.Add(instruction(0x06, 0, 0, actAllow))
	f.Add(append(instruction(0x20, 0, 0, 0), instruction(0x15, 255, 0, 1)...))
	f.Fuzz(func(_ *testing.T, code []byte) {
		_ = filter{code: code[:len(code)/8*8]}.letsReport()
	})
}
