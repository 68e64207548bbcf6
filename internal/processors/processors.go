// SPDX-License-Identifier: Apache-2.0

package processors

import (
	"os"
	"runtime"
	"sync/atomic"
)

// spare is how many threads there are beside one for each processor.
var spare atomic.Int64

// Count returns how many processors this process may use at the same time, as Go sees it: those of the
// machine, or fewer where the process or its control group is limited to fewer.
func Count() int { return runtime.GOMAXPROCS(0) - int(spare.Load()) }

// Spare lets Go code run on n threads beside one for each processor, and reports whether it does. It is
// called once, before anything runs that could be held up. From then on Go does not follow the limit of the
// control group any more.
func Spare(n int) bool {
	if n == 0 || os.Getenv("GOMAXPROCS") != "" {
		return false
	}
	of := Count()
	spare.Store(int64(n))
	runtime.GOMAXPROCS(of + n)
	return true
}
