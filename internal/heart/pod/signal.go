// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Real-time signals as the C library numbers them for programs (signal(7)): the kernel's
// first two are its own.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// signalName returns a signal as people know it, such as SIGTERM.
func signalName(s unix.Signal) string {
	return cmp.Or(unix.SignalName(s), fmt.Sprintf("signal %d", s))
}

// parseSignal reads a stop signal as images and CRI write it: SIGTERM, TERM, 15, SIGRTMIN+3,
// and CRI's own spelling SIGNAL_SIGRTMINPLUS3.
func parseSignal(s string) (unix.Signal, error) {
	name := strings.TrimPrefix(strings.TrimPrefix(strings.ToUpper(s), "SIGNAL_"), "SIG")
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= sigRTMax {
		return unix.Signal(n), nil
	}
	if n := unix.SignalNum("SIG" + name); n != 0 {
		return n, nil
	}
	name = strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name)
	if rest, ok := strings.CutPrefix(name, "RTMIN"); ok {
		if n, err := offset(rest); err == nil && n >= 0 && sigRTMin+n <= sigRTMax {
			return unix.Signal(sigRTMin + n), nil
		}
	}
	if rest, ok := strings.CutPrefix(name, "RTMAX"); ok {
		if n, err := offset(rest); err == nil && n <= 0 && sigRTMax+n >= sigRTMin {
			return unix.Signal(sigRTMax + n), nil
		}
	}
	return 0, fmt.Errorf("signal %q is not known: %w", s, errdefs.ErrInvalidArgument)
}

func offset(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.Atoi(s)
}
