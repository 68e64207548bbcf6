// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// PROPERTIES 42: a week of a full node is a week. 110 pods of two containers are replaced every day, a
// container crashes every five minutes, and a probe that fails has one restarted every hour; probes
// that succeed and pods at rest are not noted. A week was a day, because each comparison was noted.
func TestAWeekOfAFullNodeFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, stop := start(t, Config{Dir: dir, MaxAge: 8 * 24 * time.Hour})
		const step = 5 * time.Minute
		began := time.Now()
		for n := uint32(0); time.Since(began) < 7*24*time.Hour; n++ {
			r.life("crash-loop-7d9c8f6b5d-x2x4z", n, 1)
			if n%12 == 0 {
				r.life("failing-probe-5f6d7c8b9-abcde", n/12, 137)
			}
			if n%288 == 0 { // once a day
				for pod := range 110 {
					for ct := range 2 {
						r.life(fmt.Sprintf("workload-%d-%d-6b7c8d9f5-%05d", pod, ct, n), 0, 0)
					}
					synctest.Wait()
				}
			}
			time.Sleep(step)
			synctest.Wait()
		}
		first := fmt.Sprintf("%064x", "sworkload-0-0-6b7c8d9f5-00000")
		if got := kinds(t, r, Query{Of: first}); len(got) == 0 || got[0] != "PullBegan" {
			t.Errorf("the first day is gone: %v", got)
		}
		stop()
		var bytes int64
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		for _, f := range files {
			if st, serr := os.Stat(f); serr == nil {
				bytes += st.Size()
			}
		}
		if err != nil || bytes > 64<<20 || bytes == 0 {
			t.Errorf("a week takes %d bytes: %v", bytes, err)
		}
		t.Logf("a week takes %d MiB", bytes>>20)
	})
}
