// SPDX-License-Identifier: Apache-2.0

package version

import "testing"

func TestString(t *testing.T) {
	defer func(v, c string) { Version, Commit = v, c }(Version, Commit)
	for _, tc := range []struct{ version, commit, want string }{
		{"dev", "", "dev"},
		{"v0.3.0", "1a2b3c4d5e6f7a8b", "v0.3.0 (1a2b3c4d5e6f)"},
		{"1a2b3c4-dirty", "1a2b3c4d5e6f7a8b", "1a2b3c4-dirty"},
		{"dev", "1a2b", "dev (1a2b)"},
	} {
		Version, Commit = tc.version, tc.commit
		if got := String(); got != tc.want {
			t.Errorf("String() of %q, %q = %q, want %q", tc.version, tc.commit, got, tc.want)
		}
	}
}
