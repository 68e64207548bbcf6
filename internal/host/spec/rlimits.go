// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// unlimited is RLIM_INFINITY.
const unlimited = ^uint64(0)

// baseRlimits are the resource limits of every process. Those that are not listed are the kernel's
// own. A container would otherwise inherit berth's, and so depend on whether berth was started by
// systemd or in a shell. The values are those of a containerd container under its systemd unit; a
// soft limit of 1024 files is also systemd's default, and the limit of select(2).
var baseRlimits = []specs.POSIXRlimit{
	{Type: "RLIMIT_CORE", Soft: unlimited, Hard: unlimited},
	{Type: "RLIMIT_MEMLOCK", Soft: 8 << 20, Hard: 8 << 20},
	{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 524288},
	{Type: "RLIMIT_NPROC", Soft: unlimited, Hard: unlimited},
	{Type: "RLIMIT_STACK", Soft: 8 << 20, Hard: unlimited},
}

var rlimitNumbers = map[string]int{
	"RLIMIT_CORE":    unix.RLIMIT_CORE,
	"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_NOFILE":  unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC":   unix.RLIMIT_NPROC,
	"RLIMIT_STACK":   unix.RLIMIT_STACK,
}

// rlimits returns the base limits, lowered to the hard limits of this process.
func rlimits(h Host) []specs.POSIXRlimit {
	out := make([]specs.POSIXRlimit, len(baseRlimits))
	for i, l := range baseRlimits {
		if most, ok := h.MaxRlimits[l.Type]; ok {
			l.Soft, l.Hard = min(l.Soft, most), min(l.Hard, most)
		}
		out[i] = l
	}
	return out
}

// readMaxRlimits returns the hard limits of this process, which it cannot exceed without
// CAP_SYS_RESOURCE (setrlimit(2)).
func readMaxRlimits() (map[string]uint64, error) {
	out := map[string]uint64{}
	for name, number := range rlimitNumbers {
		var l unix.Rlimit
		if err := unix.Getrlimit(number, &l); err != nil {
			return nil, fmt.Errorf("read own %s: %w", name, err)
		}
		out[name] = l.Max
	}
	return out, nil
}
