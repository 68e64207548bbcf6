// SPDX-License-Identifier: Apache-2.0

package probe

import "testing"

// A version that is read is one: none of its numbers is negative.
func FuzzVersion(f *testing.F) {
	f.Add([]byte("runc version 1.4.0-rc.3\ncommit: v1\n"))
	f.Add([]byte("runc version 99999999999999999999.0.0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, ok := parseRunc(b); ok && (v[0] < 0 || v[1] < 0 || v[2] < 0 || v[3] < 0) {
			t.Errorf("%q is version %s", b, v)
		}
	})
}
