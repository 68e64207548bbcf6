// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Thaw lets the processes of a group run on that were frozen, whoever froze them. dir is what [Of]
// returns. A group that is not frozen, or that is gone, is a success.
func Thaw(dir string) error {
	file, thawed := filepath.Join(dir, "cgroup.freeze"), "0"
	if !V2() {
		path, ok := strings.CutPrefix(dir, mount+"/memory/")
		if !ok {
			return fmt.Errorf("thaw %s: it is not a group of the memory controller", dir)
		}
		file, thawed = filepath.Join(mount, "freezer", path, "freezer.state"), "THAWED"
	}
	err := os.WriteFile(file, []byte(thawed), 0)
	if err != nil && !absent(err) {
		return fmt.Errorf("thaw %s: %w", dir, err)
	}
	return nil
}
