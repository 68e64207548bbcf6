// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// calm is how long no garbage has to be collected until a burst of calls is over.
	calm = time.Second
	// worth is how much a burst allocates, at least, whose memory is given back.
	worth = 1 << 20
)

// giveBack returns the memory of bursts of calls to the kernel from now on, as berth does with its
// own (internal/daemon, in another module). Most pages of the program are used for the start of the
// shim, or of a container, and none while its containers run.
func giveBack() {
	over := time.NewTimer(calm)
	var after func()
	after = func() {
		over.Reset(calm)
		garbage := new([64]byte) // the next collection finds it
		runtime.AddCleanup(garbage, func(struct{}) { after() }, struct{}{})
	}
	after()
	go func() {
		for freed := uint64(0); ; {
			<-over.C
			s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
			if metrics.Read(s); freed == 0 || s[0].Value.Uint64()-freed >= worth {
				freed = s[0].Value.Uint64()
				debug.FreeOSMemory()
				unmapProgram()
			}
		}
	}()
}

// unmapProgram unmaps the pages of this process's program. Those that are used again are mapped
// again. Without it they stay, which harms nothing.
func unmapProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	var from, to uintptr
	ours := false
	for line := range strings.Lines(string(smaps)) {
		var first, end uintptr
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &first, &end, &mode); n == 3 {
			from, to = first, end
			ours = strings.HasSuffix(line, " "+program+"\n") && !strings.Contains(mode, "w")
			continue
		}
		// A page that was changed is not the file's any more.
		if f := strings.Fields(line); ours && len(f) > 1 && f[0] == "Anonymous:" && f[1] == "0" {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
