// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
)

// retired are the settings that an earlier version had, each with the reason why it is gone. A file
// that still has one is valid, so that an upgrade does not keep a node from starting.
var retired = map[string]string{
	"streams.keep": "exec and port-forward end with berth",
}

// Retired returns a warning for each retired setting that a file or the command line has, with the
// place.
func (l *Loaded) Retired() (warnings []string) {
	for _, key := range slices.Sorted(maps.Keys(retired)) {
		if p, ok := l.from[key]; ok {
			warnings = append(warnings, fmt.Sprintf("%s: %s has no effect any more: %s; remove it", p, key, retired[key]))
		}
	}
	return warnings
}
