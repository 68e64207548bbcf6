// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/host/pidfd"
	"berth/internal/serve/join"
)

// leavers are the ways in which the probe leaves processes behind, and the code that it ends with.
var leavers = map[string]int{
	"a sibling that ends":           9,
	"a sibling that ends later":     9,
	"orphans that end":              9,
	"stay: siblings":                9,
	"stay: a sibling that executes": 9,
	"stay: an orphan":               9,
	"stay: vfork":                   137,
	"stay: without a signal":        9,
	"stay: a reaper of its own":     9,
	"stay: traced at its exit":      noCode,
	"its parent is killed":          noCode,
	"its parent is stopped":         noCode,
}

// noCode says that the end of a program is not seen, or not how it was.
const noCode = -1

// members lists the processes of a container's groups.
func (c *container) members() (pids []int) {
	b, _ := os.ReadFile(filepath.Join(c.unified(), "cgroup.procs"))
	for _, f := range strings.Fields(string(b)) {
		pid, _ := strconv.Atoi(f)
		pids = append(pids, pid)
	}
	return pids
}

// end ends a container as berth does: its first process, and what is in its group besides.
func (c *container) end() {
	c.t.Helper()
	_ = unix.Kill(int(c.first.Pid), unix.SIGKILL)
	for deadline := time.Now().Add(10 * time.Second); ; {
		for _, pid := range c.members() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if got, err := unix.Wait4(int(c.first.Pid), nil, unix.WNOHANG, nil); got != 0 || err != nil {
			return
		}
		if time.Now().After(deadline) {
			for got := 1; got > 0; { // by which it can
				got, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
			c.t.Fatal("the container does not end")
		}
	}
}

// adopt reaps those of the container's processes that this process inherits, as init does, until
// there is none left.
func (c *container) adopt() {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		left := false
		for _, child := range children(c.t, nil) {
			pid, _ := strconv.Atoi(child)
			st, err := pidfd.ReadStat(uint32(pid))
			if err == nil && st.Program.Command != "berth-exec" {
				left = true
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
		if !left {
			return
		}
	}
}

// PROPERTIES 56: a program that has made a child of its own parent, by clone with CLONE_PARENT,
// made it berth's, which did not know of it. Its PID namespace did not end before it was reaped,
// and so the container did not.
func TestAProgramLeavesNobodyBehind(t *testing.T) {
	for name, change := range map[string]func(s *specs.Spec, _ string){
		"a PID namespace of its own": func(*specs.Spec, string) {},
		"the host's processes":       func(s *specs.Spec, _ string) { without(s, specs.PIDNamespace) },
	} {
		shared := strings.HasPrefix(name, "the host's")
		for how, want := range leavers {
			t.Run(name+"/"+how, func(t *testing.T) {
				ct := start(t, change)
				if !shared && strings.HasPrefix(how, "its parent") {
					want = 9 // it has none that it could see
				}
				p, failed := begin(ct, []string{"/probe", "leave", how})
				if failed != nil {
					t.Fatal(failed)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if want == noCode {
					_ = p.Kill()
				} else if code, err := p.Wait(ctx); err != nil || int(code) != want {
					t.Fatalf("it ended with %d %v", code, err)
				}
				if !strings.HasPrefix(how, "stay: ") {
					await(t, ctx, p.Left())
				}
				ct.end()
				await(t, ctx, p.Left())
				if _, err := p.Wait(ctx); err != nil && ctx.Err() != nil {
					t.Error("its end is not known")
				}
				if shared {
					ct.adopt()
				}
				nothingIsLeft(t)
			})
		}
	}
}

func await(t *testing.T, ctx context.Context, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("its maker does not end")
	}
}

// begin starts a program as berth does.
func begin(c *container, args []string) (*join.Process, error) {
	plan, err := c.joiner.Prepare(c.t.Context(), c.target(), args)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	return plan.Start(ctx, devNull(c.t), devNull(c.t), func(pidfd.Process) error { return nil })
}

// PROPERTIES 56: the OOM killer, or cgroup.kill, ends all that is in a group: what has just made
// the process that executes the program, and that process, of which berth was not told. The
// container itself would not end before it is reaped: its PID namespace waits for each process in
// it.
func TestAProcessThatBerthWasNotToldOfIsReaped(t *testing.T) {
	ct := start(t, func(*specs.Spec, string) {})
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, pid := range ct.members() {
				if pid != int(ct.first.Pid) {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		}
	})
	refused := 0
	for range 100 {
		p, err := begin(ct, []string{"/probe", "pause"})
		var why *join.Refusal
		switch {
		case err == nil:
			if code, err := p.Wait(t.Context()); code != 137 || err != nil {
				t.Errorf("it ended with %d %v", code, err)
			}
		case errors.As(err, &why) && why.Why == join.Failed:
			refused++
		default:
			t.Error(err)
		}
	}
	close(stop)
	killer.Wait()
	t.Logf("%d were killed before they ran", refused)
	if refused == 0 {
		t.Error("none was killed before it ran: the test proves nothing")
	}
	nothingIsLeft(t, int(ct.first.Pid))
}

// null is what must not change of the host's null device.
func null(t *testing.T) string {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Stat(os.DevNull, &s); err != nil {
		t.Fatal(err)
	}
	return strings.Join([]string{itoa(int(s.Mode)), itoa(int(s.Uid)), itoa(int(s.Gid)), itoa(int(s.Mtim.Sec))}, " ")
}

// PROPERTIES 56: root in a container changed the mode of the host's null device, which was the
// standard input of its probe.
func TestAProgramGetsNoFileOfTheHost(t *testing.T) {
	for name, change := range map[string]func(s *specs.Spec, rootfs string){
		"as berth makes them": func(*specs.Spec, string) {},
		"privileged":          func(s *specs.Spec, _ string) { s.Process.Capabilities = all() },
	} {
		t.Run(name, func(t *testing.T) {
			ct := start(t, change)
			var was unix.Stat_t
			if err := unix.Stat(os.DevNull, &was); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = os.Chown(os.DevNull, int(was.Uid), int(was.Gid))
				_ = unix.Chmod(os.DevNull, was.Mode&0o7777)
				_ = os.Chtimes(os.DevNull, time.Unix(was.Atim.Unix()), time.Unix(was.Mtim.Unix()))
			})
			before := null(t)
			out, code, err := ct.inside(byHelper, "/probe", "touch")
			if err != nil || code != 9 || len(out) != 3 {
				t.Fatalf("%v, code %d, it finds %q", err, code, out)
			}
			if after := null(t); after != before {
				t.Errorf("the host's null device was %s and is %s: %q", before, after, out)
			}
			// It has changed its own: that is as it was for others, and for the next one as it has
			// left it.
			other := start(t, change)
			got, _, err := other.inside(byHelper, "/probe", "report")
			if err != nil || !strings.HasPrefix(got[len([]string{"arg", "arg", "env", "env", "env"})], "fd 0: mode 20666 owner 0:0 rdev 103") {
				t.Errorf("%v: another container finds %q", err, got)
			}
		})
	}
}
