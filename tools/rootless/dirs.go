// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"cmp"
	"os"
	"path/filepath"
)

// home returns a directory of the user's: the value of an environment variable, or a directory
// below the home directory (XDG Base Directory Specification).
func home(variable, below string) string {
	return cmp.Or(os.Getenv(variable), filepath.Join(os.Getenv("HOME"), below))
}

// Data returns the directory of a user's berth for data that survives a reboot.
func Data() string { return filepath.Join(home("XDG_DATA_HOME", ".local/share"), "berth") }

// Settings returns where a user's berth reads its settings.
func Settings() string { return filepath.Join(home("XDG_CONFIG_HOME", ".config"), "berth") }

// Address returns the socket of a user's berth. It is the same inside and outside of the
// namespaces.
func Address() string {
	return filepath.Join(home("XDG_RUNTIME_DIR", ".local/share/berth"), "berth.sock")
}
