// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"
	"sync/atomic"
	"testing"

	"berth/internal/base/config"
)

// PROPERTIES 73: the status warns of a disk on which soon no exit can be put on record, and of a
// history that a restart loses; and of neither if it is not known, or was asked for.
func TestTheStatusWarnsOfAFullDiskAndOfALostHistory(t *testing.T) {
	for name, tt := range map[string]struct {
		total, free uint64
		lost        string
		mib         int
		full, loses string
	}{
		"all is well":              {100 << 30, 50 << 30, "", 64, "", ""},
		"a little is left":         {100 << 30, 5 << 30, "", 64, "", ""},
		"too little is left":       {100 << 30, 4 << 30, "", 64, "the disk of /r is full: 4096 MiB of 102400 MiB are free; `berth df` has what takes the space, and on a full disk no exit is put on record\nthe disk of /run/r is full", ""},
		"nothing is left":          {1 << 30, 0, "no space left on device", 64, "0 MiB of 1024 MiB are free", "the history is in memory alone, and lost if berth is restarted: no space left on device"},
		"the disk does not answer": {0, 0, "the disk does not answer", 64, "", "the disk does not answer"},
		"no history is wanted":     {1 << 30, 1 << 30, "it is off", 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &config.Config{Root: "/r", State: "/run/r"}
			cfg.Timeline.MaxMiB = tt.mib
			h := &health{
				settings: &atomic.Pointer[config.Config]{},
				space:    func(string) (uint64, uint64) { return tt.total, tt.free },
				inMemory: func() string { return tt.lost },
			}
			h.settings.Store(cfg)
			for got, want := range map[string]string{"disk " + strings.Join(h.fullDisks(), "\n"): tt.full, "history " + h.forgets(): tt.loses} {
				if _, got, _ := strings.Cut(got, " "); (want == "") != (got == "") || !strings.Contains(got, want) {
					t.Errorf("the warning is %q, want %q", got, want)
				}
			}
		})
	}
}
