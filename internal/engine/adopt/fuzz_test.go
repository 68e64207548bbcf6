// SPDX-License-Identifier: Apache-2.0

package adopt

import "testing"

// The files of containerd's CRI plug-in that are of another version, or damaged, are an error.
func FuzzStatus(f *testing.F) {
	f.Add([]byte(`{"Version":"v1","Pid":1}`), []byte(`{"interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}`))
	f.Add([]byte(`{"Version":"v2"}`), []byte(`{"ips":[{"address":"x","interface":-1}]}`))
	f.Fuzz(func(t *testing.T, status, result []byte) {
		if s, err := readStatus(status); err == nil && s.Version != version {
			t.Errorf("%q is of version %q", status, s.Version)
		}
		_, _ = readMetadata[sandboxMetadata](status)
		if ips, err := addresses(result, "eth0"); err != nil && len(ips) > 0 {
			t.Errorf("%q has addresses, and %v", result, err)
		}
	})
}
