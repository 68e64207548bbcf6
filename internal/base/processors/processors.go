// SPDX-License-Identifier: Apache-2.0

package processors

import (
	"os"
	"runtime"
	"sync/atomic"
)

// spareThreads is how many threads there are in addition to one for each processor. A few are
// enough: settling an end runs few goroutines at a time.
const spareThreads = 4

// before is the value of Count before there were spare threads; 0 while there are none.
var before atomic.Int64

// Count returns how many goroutines this process may run at the same time without spare threads:
// one for each processor of the machine, or fewer if its control group or GOMAXPROCS in the
// environment limits them.
func Count() int {
	if n := before.Load(); n > 0 {
		return int(n)
	}
	return runtime.GOMAXPROCS(0)
}

// Spare lets Go run goroutines on a few more threads than there are processors, unless a person or
// a quota has set their number, and reports whether it did. It is called once, when berth starts.
// After that, Go no longer adapts to a new quota of the control group.
func Spare() bool {
	n := runtime.GOMAXPROCS(0)
	if os.Getenv("GOMAXPROCS") != "" || n < runtime.NumCPU() {
		return false
	}
	before.Store(int64(n))
	runtime.GOMAXPROCS(n + spareThreads)
	return true
}
