// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Activities of a canary.
const (
	waits = "wait" // until SIGTERM
	ends  = "end"  // with 42, after a moment
	eats  = "eat"  // memory, until it is killed
	talks = "talk" // without end
)

// ownCode is the code that a canary ends with by itself.
const ownCode = 42

// moment is how long a canary lives that ends by itself, so that its start and its end are two
// things.
const moment = 200 * time.Millisecond

// memoryLimit is the memory limit of a canary, in bytes, and enough how many MiB one uses to reach
// its limit.
const (
	memoryLimit = 96 << 20
	enough      = 512
)

// Canary is the program in the container of a drill. It returns the code to end with.
func Canary(does string) (code int, err error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	switch does {
	case waits:
		<-stop
		return 0, nil
	case ends:
		fmt.Println("the canary ends")
		select {
		case <-stop:
			return 0, nil
		case <-time.After(moment):
			return ownCode, nil
		}
	case eats:
		var kept [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1 // each page is there once it was written to
			}
			kept = append(kept, b)
			if len(kept) > enough { // its limit does not hold: it must not take the memory of others
				return 1, fmt.Errorf("%d MiB were taken, and nobody has ended it", enough)
			}
		}
	case talks:
		line := strings.Repeat("the canary talks ", 60) + "\n"
		for {
			if _, err := os.Stdout.WriteString(line); err != nil {
				return 1, err
			}
		}
	}
	return 1, fmt.Errorf("a canary does not %q", does)
}
