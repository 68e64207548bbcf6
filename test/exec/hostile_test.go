// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/host/namespace"
	"berth/internal/host/pidfd"
	"berth/internal/serve/join"
)

// within runs f in the mount namespace of a container, in a thread of its own.
func (c *container) within(f func() error) {
	c.t.Helper()
	if err := namespace.InThread(func() error {
		fd, err := unix.PidfdOpen(int(c.first.Pid), 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
			return err
		}
		return f()
	}); err != nil {
		c.t.Fatal(err)
	}
}

// A pod that may mount replaces /proc: by nothing, and by that of others. No label and no score is
// written to what it shows. (runc itself refuses an exec then, because it looks for cap_last_cap
// there.)
func TestAContainerReplacesItsProc(t *testing.T) {
	ct := start(t, func(s *specs.Spec, _ string) {
		s.Process.OOMScoreAdj = ptr(321)
		s.Process.Cwd = "/tmp"
	})
	ct.within(func() error { return unix.Mount("tmpfs", "/proc", "tmpfs", 0, "") })
	ct.within(func() error {
		for _, d := range []string{"/proc/self/attr", "/proc/thread-self/attr/apparmor"} {
			if err := os.MkdirAll(d, 0o777); err != nil {
				return err
			}
		}
		for _, f := range []string{"self/oom_score_adj", "self/attr/exec", "thread-self/attr/exec", "thread-self/attr/apparmor/exec"} {
			if err := os.WriteFile("/proc/"+f, []byte("untouched"), 0o666); err != nil {
				return err
			}
		}
		return nil
	})
	r := byHelper(ct, []string{"/probe", "hold"})
	if r.failed != nil {
		t.Fatal(r.failed)
	}
	b, err := os.ReadFile("/proc/" + itoa(r.pid) + "/oom_score_adj")
	if string(b) != "321\n" {
		t.Errorf("its OOM score is %q %v", b, err)
	}
	r.kill()
	r.code()
	ct.within(func() error {
		for _, f := range []string{"self/oom_score_adj", "self/attr/exec", "thread-self/attr/exec", "thread-self/attr/apparmor/exec"} {
			if b, err := os.ReadFile("/proc/" + f); string(b) != "untouched" {
				t.Errorf("%s was written: %q %v", f, b, err)
			}
		}
		return nil
	})
}

// PROPERTIES 45: a program of the container leads to berth-exec itself, by /proc/self/exe, and
// writes to it.
func TestAContainerCannotWriteToTheHelper(t *testing.T) {
	ct := start(t, func(_ *specs.Spec, rootfs string) {
		_ = os.Symlink("/proc/self/exe", filepath.Join(rootfs, "self"))
		_ = os.WriteFile(filepath.Join(rootfs, "self.sh"), []byte("#!/proc/self/exe\n"), 0o755)
	})
	before, err := os.ReadFile(filepath.Join(libexec(), "berth-exec"))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"/self", "/self.sh"} {
		r := byHelper(ct, []string{program})
		if r.failed == nil {
			r.code()
		}
	}
	// Where the container has got hold of it, it is sealed.
	f, err := os.OpenFile(ct.joiner.Program(), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write([]byte("x"))
		_ = f.Close()
	}
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("it can be written to: %v", err)
	}
	if after, _ := os.ReadFile(filepath.Join(libexec(), "berth-exec")); !bytes.Equal(before, after) {
		t.Error("the installed program has changed")
	}
	compare(t, ct)
}

// PROPERTIES 45: a container that has got hold of berth-exec cannot write to it, but can have it
// open for that, and change its mode. No other container's probes were made then.
func TestAContainerCannotHaveTheHelperToItself(t *testing.T) {
	for name, spoil := range map[string]func(path string) (undo func(), err error){
		"it is open for writing": func(path string) (func(), error) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			return func() { _ = f.Close() }, err
		},
		"nobody may execute it": func(path string) (func(), error) { return func() {}, os.Chmod(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			ct := start(t, func(*specs.Spec, string) {})
			undo, err := spoil(ct.joiner.Program())
			if err != nil {
				t.Fatal(err)
			}
			defer undo()
			for range 2 {
				r := byHelper(ct, []string{"/probe", "exit"})
				if r.failed != nil {
					t.Fatal(r.failed)
				}
				if code := r.code(); code != 9 {
					t.Errorf("it ended with %d", code)
				}
			}
		})
	}
}

// Go's fork moves descriptors above the highest that it gives to a process. The one of berth-exec
// was among them, on a node where about two hundred were open.
func TestAnyDescriptorsMayBeOpen(t *testing.T) {
	ct := start(t, func(*specs.Spec, string) {})
	plan, err := ct.joiner.Prepare(t.Context(), ct.target(), []string{"/probe", "exit"})
	if err != nil {
		t.Fatal(err)
	}
	for at := 190; at < 210; at++ {
		fd, err := unix.FcntlInt(devNull(t).Fd(), unix.F_DUPFD_CLOEXEC, at)
		if err != nil {
			t.Fatal(err)
		}
		out := os.NewFile(uintptr(fd), "null")
		p, err := plan.Start(t.Context(), out, out, func(pidfd.Process) error { return nil })
		_ = out.Close()
		if err != nil {
			t.Errorf("with descriptor %d: %v", fd, err)
			continue
		}
		if code, err := p.Wait(t.Context()); code != 9 || err != nil {
			t.Errorf("it ended with %d %v", code, err)
		}
	}
}

// PROPERTIES 45: a container with root and without CAP_SYS_PTRACE hunts what joins it: it tries to
// trace it, to read its memory and descriptors, and to stop and kill it.
func TestAContainerHuntsWhatJoinsIt(t *testing.T) {
	ct := start(t, func(s *specs.Spec, _ string) {})
	hunter := byOCI(ct, []string{"/probe", "hunt"})
	if hunter.failed != nil {
		t.Fatal(hunter.failed)
	}
	for range 200 {
		r := byHelper(ct, []string{"/probe", "exit"})
		if r.failed != nil {
			t.Fatal(r.failed)
		}
		if code := r.code(); code != 9 {
			t.Fatalf("it ended with %d", code)
		}
		_, _ = r.out.Close(), r.err.Close()
	}
	hunter.kill()
	hunter.code()
	out, err := io.ReadAll(hunter.out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out, []byte("hunting")) {
		t.Error("nobody has hunted")
	}
	if bytes.Contains(out, []byte("caught")) {
		t.Errorf("it was caught: %s", out)
	}
}

// What is killed before it executes the program has not run it.
func TestAContainerKillsWhatJoinsIt(t *testing.T) {
	ct := start(t, func(s *specs.Spec, _ string) {})
	killer := byOCI(ct, []string{"/probe", "slay"})
	if killer.failed != nil {
		t.Fatal(killer.failed)
	}
	defer func() {
		killer.kill()
		killer.code()
	}()
	ran, refused := 0, 0
	for range 200 {
		r := byHelper(ct, []string{"/probe", "exit"})
		var why *join.Refusal
		switch {
		case errors.As(r.failed, &why) && why.Why == join.Failed:
			refused++
			if strings.Contains(r.failed.Error(), "ctx") {
				t.Error(r.failed)
			}
			continue
		case r.failed != nil:
			t.Fatal(r.failed)
		}
		if code := r.code(); code != 9 && code != 137 {
			t.Fatalf("it ended with %d", code)
		}
		ran++
	}
	t.Logf("%d have run, %d were killed before", ran, refused)
	if refused == 0 {
		t.Error("none was killed before it ran: the test proves nothing")
	}
}

// A container that is paused is for the OCI runtime to refuse, and nothing joins it.
func TestAPausedContainerIsNotJoined(t *testing.T) {
	ct := start(t, func(s *specs.Spec, _ string) {})
	if out, err := ct.runtime("pause", ct.id); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := byHelper(ct, []string{"/probe", "report"})
	var why *join.Refusal
	if !errors.As(r.failed, &why) || why.Why != join.Groups {
		t.Errorf("got %v", r.failed)
	}
	if out, err := ct.runtime("resume", ct.id); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	compare(t, ct)
}

// A start is given up at any instant, and leaves no process and no zombie.
func TestAStartIsGivenUpWithItsContext(t *testing.T) {
	ct := start(t, func(s *specs.Spec, _ string) {})
	ran, given := 0, 0
	for i := range 150 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		plan, err := ct.joiner.Prepare(t.Context(), ct.target(), []string{"/probe", "hold"})
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Start(ctx, devNull(t), devNull(t), func(pidfd.Process) error { return nil })
		var why *join.Refusal
		switch {
		case err == nil:
			ran++
			_ = p.Kill()
			_, _ = p.Wait(t.Context())
		case errors.As(err, &why):
			given++
		default:
			t.Errorf("got %v", err)
		}
		cancel()
	}
	t.Logf("%d have run, %d were given up", ran, given)
	if given == 0 {
		t.Error("none was given up: the test proves nothing")
	}
	nothingIsLeft(t, int(ct.first.Pid))
}

// nothingIsLeft waits until this process has no child, zombies included, but for some.
func nothingIsLeft(t *testing.T, but ...int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		left := children(t, but)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, pid := range left {
				b, _ := os.ReadFile("/proc/" + pid + "/stat")
				t.Errorf("a process is left: %s", b)
			}
			return
		}
		runtime.Gosched()
	}
}

// devNull is a stream to nowhere.
func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// children lists those of this process, zombies included, but for some.
func children(t *testing.T, but []int) (pids []string) {
	t.Helper()
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, pid := range strings.Fields(string(b)) {
			if n, _ := strconv.Atoi(pid); !slices.Contains(but, n) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// What cannot be executed is refused, whatever it is, and left to the OCI runtime.
func TestWhatCannotBeExecutedIsRefused(t *testing.T) {
	ct := start(t, func(s *specs.Spec, _ string) {})
	for _, args := range [][]string{{"/none"}, {"none"}, {"/dir"}, {"/plain"}, {"/script"}, {"/odd"}, {""}, {"."}, {"/probe/x"}} {
		r := byHelper(ct, args)
		var why *join.Refusal
		if !errors.As(r.failed, &why) || why.Why != join.Failed {
			t.Errorf("%q: got %v", args, r.failed)
		}
	}
	for name, change := range map[string]func(s *specs.Spec, _ string){
		"a relative PATH": func(s *specs.Spec, _ string) { s.Process.Env[0], s.Process.Cwd = "PATH=.:bin", "/usr/bin" },
		"no PATH":         func(s *specs.Spec, _ string) { s.Process.Env = []string{"HOME=/"} },
	} {
		t.Run(name, func(t *testing.T) {
			ct := start(t, change)
			if r := byHelper(ct, []string{"found"}); r.failed == nil {
				t.Error("it was found")
				r.kill()
				r.code()
			}
		})
	}
	gone := start(t, func(s *specs.Spec, rootfs string) {
		_ = os.Mkdir(filepath.Join(rootfs, "gone"), 0o755)
		s.Process.Cwd = "/gone"
	})
	gone.within(func() error { return os.Remove("/gone") })
	if r := byHelper(gone, []string{"/probe", "report"}); r.failed == nil {
		t.Error("its directory is gone")
	}
}
