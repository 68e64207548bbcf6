// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// setSysctls writes settings of the namespaces that this thread is in: the kernel shows each thread
// those of its own.
func setSysctls(values map[string]string) error {
	for name, v := range values {
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if err := os.WriteFile(path, []byte(v), 0o600); err != nil {
			return fmt.Errorf("set sysctl %s to %q: %w", name, v, err)
		}
	}
	return nil
}
