// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Process identifies a process of this host so that another one that got the same pid later is not
// taken for it.
type Process struct {
	Pid uint32 `json:"pid"`
	// StartTicks is field 22 of /proc/PID/stat: the instant of its start, in clock ticks after boot.
	// 0 means that it is not known.
	StartTicks uint64 `json:"startTicks,omitempty"`
	// BootID is /proc/sys/kernel/random/boot_id of the boot in which the process was started. Empty
	// means that it is not known.
	BootID string `json:"bootID,omitempty"`
}

// BootID is the id of the running kernel's boot (proc_sys_kernel(5), random/boot_id).
var BootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// stat is what berth reads of /proc/PID/stat.
type stat struct {
	state      byte   // field 3; 'Z' is a zombie
	startTicks uint64 // field 22
	exitStatus uint32 // field 52, a wait status; 0 without the right to ptrace
}

func readStat(pid uint32) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/stat")
	if err != nil {
		return stat{}, err
	}
	// The command (field 2) is in parentheses and may hold anything, parentheses included.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("read /proc/%d/stat: no command in %q", pid, b)
	}
	f := strings.Fields(string(b[i+1:])) // f[0] is field 3
	if len(f) < 50 {
		return stat{}, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(f)+2)
	}
	start, err := strconv.ParseUint(f[22-3], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("read /proc/%d/stat: start time: %w", pid, err)
	}
	status, err := strconv.ParseUint(f[52-3], 10, 32)
	if err != nil {
		return stat{}, fmt.Errorf("read /proc/%d/stat: exit status: %w", pid, err)
	}
	return stat{state: f[0][0], startTicks: start, exitStatus: uint32(status)}, nil
}
