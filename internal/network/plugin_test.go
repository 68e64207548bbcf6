// SPDX-License-Identifier: Apache-2.0

package network

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// A plug-in starts other programs all the time. Those that it starts while it is looked for are
// ended, too.
func TestWhatAPluginStartsMeanwhileIsEnded(t *testing.T) {
	for range 5 {
		cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 2000 ]; do sleep 1000 & i=$((i+1)); [ $i = 20 ] && echo busy; done; wait")
		cmd.Env = append(os.Environ(), "CNI_CONTAINERID=plugin-test")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
			t.Error(err)
		}
		if err := endPlugins(t.Context(), "plugin-test"); err != nil {
			t.Error(err)
		}
		left := 0
		procs, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			if pid, err := strconv.Atoi(p.Name()); err == nil && worksOn(pid, "plugin-test") {
				left++
			}
		}
		if left > 0 {
			t.Errorf("%d processes are left", left)
			_ = endPlugins(t.Context(), "plugin-test")
		}
		_ = cmd.Wait()
	}
}
