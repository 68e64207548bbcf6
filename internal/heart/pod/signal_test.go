// SPDX-License-Identifier: Apache-2.0

package pod

import "testing"

func TestSignals(t *testing.T) {
	for in, want := range map[string]int{
		"SIGTERM": 15, "TERM": 15, "15": 15, "sigkill": 9, "SIGRTMIN+3": 37, "SIGNAL_SIGRTMINPLUS3": 37, "SIGNAL_SIGRTMAXMINUS1": 63, "RTMAX": 64, "SIGNAL_SIGUSR1": 10,
	} {
		if got, err := parseSignal(in); err != nil || int(got) != want {
			t.Errorf("%s: %v %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "65", "SIGNOPE", "SIGRTMIN+99", "RTMAX+1"} {
		if got, err := parseSignal(in); err == nil {
			t.Errorf("%q is %d", in, got)
		}
	}
}
