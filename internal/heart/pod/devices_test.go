// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// A request for the device / searched all of the host's files, and ended with an error that nobody
// understood when it found one that vanished. PROPERTIES 12.
func TestADirectoryOfDevicesIsNotSearchedWithoutEnd(t *testing.T) {
	dir := t.TempDir()
	for i := range maxDeviceFiles {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{dir, "/", dir + "/1", dir + "/absent"} {
		if found, err := hostDevices(path); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, %v", path, found, err)
		}
	}
	if found, err := hostDevices("/dev/null"); err != nil || len(found) != 1 || found[0].Path != "/dev/null" {
		t.Errorf("/dev/null: %v, %v", found, err)
	}
}
