// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// retired are the settings that an earlier version had, each with the rule that holds now; * is the
// name of a handler. A file that still has one is valid, so that an upgrade does not keep a node
// from starting.
var retired = map[string]string{
	"streams.keep":               "exec and port-forward end with berth",
	"checkpoint.max_mib":         "the changed files of a container have 16 GiB at most",
	"image.max_profile_bytes":    "a profile from a registry has 1 MiB at most",
	"image.max_profile_rules":    "a profile from a registry has 128 entries of system calls at most",
	"image.min_bytes_per_minute": "a pull is given up below a kibibyte a minute",
	"image.peer.ask":             "16 peers are asked for a blob side by side",
	"image.peer.max_blobs":       "16 blobs are sent to peers at the same time",
	"image.peer.name":            "the certificates of peers have the DNS name berth-peer",
	"image.peer.timeout":         "a peer that sends nothing for five seconds is left",
	"lanes.attempt_timeout":      "it is a thirtieth of lanes.backoff_max",
	"lanes.backoff_min":          "it is a three-hundredth of lanes.backoff_max",
	"nri.registration_timeout":   "it is nri.request_timeout",
	"timeline.max_age":           "an entry of a timeline is kept for a week at most",
	"runtimes.*.options":         "the type of the shim decides, and config_path",
}

// retiredBecause returns the rule that holds instead of a retired setting; "" if it is not retired.
func retiredBecause(key string) string {
	if parts := strings.Split(key, "."); len(parts) == 3 && parts[0] == "runtimes" {
		key = "runtimes.*." + parts[2]
	}
	return retired[key]
}

// Retired returns a warning for each retired setting that a file or the command line has, with the
// place.
func (l *Loaded) Retired() (warnings []string) {
	for _, key := range slices.Sorted(maps.Keys(l.from)) {
		if rule := retiredBecause(key); rule != "" {
			warnings = append(warnings, fmt.Sprintf("%s: %s has no effect any more: %s; remove it", l.from[key], key, rule))
		}
	}
	return warnings
}
