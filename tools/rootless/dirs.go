// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"cmp"
	"os"
	"path/filepath"
)

// home returns a directory of the user's: what an environment variable names, or a directory below the
// home directory (XDG Base Directory Specification).
func home(variable, below string) string {
	return cmp.Or(os.Getenv(variable), filepath.Join(os.Getenv("HOME"), below))
}

// Data returns where a user's berth keeps what has to survive a reboot.
func Data() string { return filepath.Join(home("XDG_DATA_HOME", ".local/share"), "berth") }

// Settings returns where a user's berth reads its settings.
func Settings() string { return filepath.Join(home("XDG_CONFIG_HOME", ".config"), "berth") }

// Address returns the socket of a user's berth. It is the same inside the namespaces and outside.
func Address() string {
	return filepath.Join(home("XDG_RUNTIME_DIR", ".local/share/berth"), "berth.sock")
}
