// SPDX-License-Identifier: Apache-2.0

package pidfd

import "testing"

// A process gives itself any name, which stands in the middle of what is read about it.
func FuzzStat(f *testing.F) {
	f.Add([]byte("1 (a) b) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 5 1 1 1 1 1 1 1 1 0 0 0 0 0 0 0 17 0 0 0 0 0 0 1 1 1 1 1 1 1 0"))
	f.Add([]byte("1 (a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if st, err := parseStat(b); err == nil && st.State == 0 {
			t.Errorf("%q is the stat of a process without a state", b)
		}
	})
}
