// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// What the files of a group have never makes a reader of them panic, and a text without a counter is
// not a count.
func FuzzCounters(f *testing.F) {
	f.Add([]byte("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"))
	f.Add([]byte("low 0\nhigh 0\noom 1\noom_kill 2\n"))
	f.Add([]byte("12\n13\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		for _, name := range []string{"memory.oom_control", "memory.events", "memory.events.local", "cgroup.procs"} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := OOMKills(dir); err != nil && n != 0 {
			t.Errorf("%d kills, and %v", n, err)
		}
		pids, err := Procs(dir)
		for _, pid := range pids {
			if pid <= 0 && err == nil {
				t.Errorf("%d is the pid of a process in %q", pid, b)
			}
		}
		_, _ = limitHits(dir)
	})
}
