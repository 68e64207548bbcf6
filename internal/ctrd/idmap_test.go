// SPDX-License-Identifier: Apache-2.0

package ctrd

import "testing"

// User namespaces were advertised because the snapshotter could shift owners, on a kernel that
// cannot on the file system of the layers: no container started. PROPERTIES 22.
func TestOwnersAreMappedOnlyWhereTheFileSystemCan(t *testing.T) {
	if ok, err := mapsOwnersOf("/proc"); ok || err != nil {
		t.Errorf("/proc: %v, %v", ok, err)
	}
	if ok, err := mapsOwnersOf(t.TempDir() + "/absent"); ok || err == nil {
		t.Errorf("no directory: %v, %v", ok, err)
	}
	if _, err := mapsOwnersOf(t.TempDir()); err != nil { // whether it can depends on the host
		t.Error(err)
	}
}
