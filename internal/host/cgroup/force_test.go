// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/host/pidfd"
)

// freezerOf makes the group of a name in the hierarchy that freezes, if that is another one than
// that of dir, and returns the file that freezes it, with what to write.
func freezerOf(t *testing.T, dir string) (group, file, frozen string) {
	t.Helper()
	if V2() {
		return dir, filepath.Join(dir, "cgroup.freeze"), "1"
	}
	path, _ := within(dir)
	group = filepath.Join(freezer, path)
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeSoon(t, group) })
	return group, filepath.Join(group, "freezer.state"), "FROZEN"
}

// PROPERTIES 51 and 55: a process that was killed ends although its own group is frozen, or one
// above or below it, or one that is not its container's at all. With cgroup v1 it did not, ever.
func TestAKilledProcessOfAFrozenGroupEnds(t *testing.T) {
	places := []string{"own", "below", "above"}
	if !V2() { // where a process is in one group for each hierarchy
		places = append(places, "elsewhere")
	}
	for _, where := range places {
		for _, by := range []string{"force", "kill all"} {
			t.Run(where+", "+by, func(t *testing.T) {
				dir := group(t)
				own, file, frozen := freezerOf(t, dir)
				at := own
				switch where {
				case "below", "above":
					at = filepath.Join(own, "below")
					if err := os.Mkdir(at, 0o755); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { removeSoon(t, at) })
					if where == "below" {
						file = filepath.Join(at, filepath.Base(file))
					}
				case "elsewhere":
					at, file, frozen = freezerOf(t, dir+"-elsewhere")
				}
				cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && echo $$ >"$1/cgroup.procs" && exec sleep 1000`, dir, at)
				if V2() {
					cmd.Args[4] = at
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				for program := ""; program != "sleep\n"; {
					b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
					if err != nil {
						t.Fatal(err)
					}
					program = string(b)
				}
				if err := os.WriteFile(file, []byte(frozen), 0); err != nil {
					t.Fatal(err)
				}
				until(t, "it is frozen", func() bool {
					b, err := os.ReadFile(file)
					return err == nil && strings.TrimSpace(string(b)) == frozen
				})
				t.Cleanup(func() { _ = os.WriteFile(file, []byte(map[bool]string{true: "0", false: "THAWED"}[V2()]), 0) })
				if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				ended := make(chan struct{})
				go func() { _ = cmd.Wait(); close(ended) }()
				if by == "force" {
					held, err := Force(dir, pidfd.Process{Pid: uint32(cmd.Process.Pid)})
					if err != nil {
						t.Error(err)
					}
					if !V2() && !strings.Contains(held, "is frozen by cgroup "+at) {
						t.Errorf("what held it: %s", held)
					}
				} else {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					if err := KillAll(ctx, dir); err != nil {
						t.Error(err)
					}
				}
				select {
				case <-ended:
				case <-time.After(10 * time.Second):
					_ = os.WriteFile(file, []byte("THAWED"), 0)
					<-ended
					t.Errorf("process %d lives on", cmd.Process.Pid)
				}
			})
		}
	}
}

// removeSoon removes a group that what was killed may not have left yet.
func removeSoon(t *testing.T, dir string) {
	t.Helper()
	until(t, "removed: "+dir, func() bool { return os.Remove(dir) == nil })
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("not so in time: ", what)
		default:
		}
	}
}
