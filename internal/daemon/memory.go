// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mostGarbage is how much garbage berth may have, in percent of what it needs. It is half of what
// Go allows otherwise. A node pays for memory all the time, and for collecting it only while pods
// come and go: with 50 pods it is 4.5 MiB of 69, and the processor time of a pod's life did not
// grow by more than what differs from run to run (171 ms to 176).
const mostGarbage = 50

// boundGarbage sets that, unless GOGC in the environment says otherwise.
func boundGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(mostGarbage)
	}
}

const (
	// calm is how long no garbage has to be collected until a burst of work is over.
	calm = time.Second
	// worth is how much a burst allocates, at least, whose memory is given back.
	worth = 32 << 20
)

// giveBack returns the memory of bursts of work to the kernel until ctx ends: that of the start,
// and of many pods that come or go. Go would keep the garbage for minutes, and the kernel would
// count every page of the program that was ever used. Nothing looks for bursts: each collection of
// garbage tells that there may be one, and at rest there is one in two minutes.
func giveBack(ctx context.Context, log *slog.Logger) error {
	over := time.NewTimer(calm)
	defer over.Stop()
	afterCollections(ctx, func() { over.Reset(calm) })
	for freed := uint64(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-over.C:
		}
		if now := allocated(); freed == 0 || now-freed >= worth {
			freed = now
			debug.FreeOSMemory()
			if err := adviseProgram(unix.MADV_DONTNEED); err != nil {
				log.Debug("pages of the program that were used once stay resident", "err", err)
			}
		}
	}
}

// afterCollections calls f after each collection of garbage until ctx ends.
func afterCollections(ctx context.Context, f func()) {
	if ctx.Err() != nil {
		return
	}
	f()
	garbage := new([64]byte) // the next collection finds it
	runtime.AddCleanup(garbage, func(f func()) { afterCollections(ctx, f) }, f)
}

// allocated is how much memory this process has allocated in its life.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// adviseProgram gives the kernel an advice about the pages of this process's program, such as
// MADV_DONTNEED to unmap them. Most were used for the start alone: of 42 MiB, 5 are used at rest.
// Those that are used again are mapped again, 16 at a time, from the page cache as long as they are
// there.
func adviseProgram(advice int) error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the program of this process: %w", err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("find the pages of the program: %w", err)
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
		// A page that was changed is not the file's any more, such as one that a linker has changed
		// before it took the right to write away.
		if f := strings.Fields(line); !ours || len(f) < 2 || f[0] != "Anonymous:" || f[1] != "0" {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, uintptr(advice)); errno != 0 {
			return fmt.Errorf("advise the kernel about the pages of the program: %w", errno)
		}
	}
	return nil
}
