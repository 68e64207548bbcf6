// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// IDs that no other process uses: the tests of two rooms run at the same time, and the search for
// what a task has left ends every shim on the machine that has its ID.
var thisID, otherID = newID(), newID()

func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// node returns a Shims that knows of none.
func node() *Shims { return New(Config{Logger: slog.New(slog.DiscardHandler)}) }

// entry is a process in a made-up /proc.
type entry struct {
	exe, mounts, group string
	args               []string // nil: reading them blocks for ever
}

func proc(t *testing.T, entries map[string]entry) string {
	t.Helper()
	dir := t.TempDir()
	for pid, e := range entries {
		d := filepath.Join(dir, pid)
		try(t, os.MkdirAll(d+"/ns", 0o700))
		try(t, os.Symlink(e.exe, d+"/exe"))
		try(t, os.Symlink(e.mounts, d+"/ns/mnt"))
		try(t, os.WriteFile(d+"/cgroup", []byte("0::"+e.group+"\n"), 0o600))
		if e.args == nil {
			try(t, unix.Mkfifo(d+"/cmdline", 0o600))
			continue
		}
		try(t, os.WriteFile(d+"/cmdline", []byte(strings.Join(e.args, "\x00")+"\x00"), 0o600))
	}
	return dir
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// PROPERTIES 20: the arguments of what a pod runs are never read, since a process that holds the
// lock on its own memory map blocks the reader for ever. One such process stopped every release.
func TestAPodsProcessCannotBlockTheSearchForShims(t *testing.T) {
	const host = "mnt:[1]"
	args := []string{"/usr/bin/containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", thisID}
	pod := "/kubepods/pod1/" + otherID
	s := node()
	defer s.Wait()
	s.processes.proc = proc(t, map[string]entry{
		"self": {exe: "/usr/bin/berth", mounts: host, group: "/system.slice/berth.service", args: []string{"berth"}},
		"100":  {exe: "/usr/bin/containerd-shim-runc-v2", mounts: host, group: "/system.slice/berth.service", args: args},
		"101":  {exe: "/usr/bin/runc", mounts: host, group: "/system.slice/berth.service", args: []string{"runc", "create", thisID}},
		"200":  {exe: "/bin/sh", mounts: host, group: "/user.slice"},
		"201":  {exe: "/bin/sleep", mounts: "mnt:[2]", group: pod},
		"202":  {exe: "/usr/bin/containerd-shim-runc-v2", mounts: "mnt:[2]", group: pod},
		"203":  {exe: "/usr/bin/containerd-shim-runc-v2", mounts: host, group: pod + "/below"},
		"204":  {exe: "/usr/bin/runc", mounts: "mnt:[2]", group: "/"},
	})
	found, err := s.processes.find(t.Context(), "runc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, p := range found {
		pids = append(pids, strconv.Itoa(p.pid))
	}
	if got := strings.Join(pids, " "); got != "100 101" {
		t.Errorf("found processes %s", got)
	}
}

// PROPERTIES 54: a user of the host starts a program called as a shim's, with the arguments of one
// that cleans up after a pod, which anybody can read. The release of the pod waited for its end,
// for ever.
func TestAProcessOfAnotherUserIsNotAShim(t *testing.T) {
	s := node()
	defer s.Wait()
	shim := entry{exe: "/tmp/containerd-shim-x", mounts: "mnt:[1]", group: "/user.slice", args: []string{"/tmp/containerd-shim-x", "-id", thisID, "delete"}}
	s.processes.proc = proc(t, map[string]entry{
		"self": {exe: "/usr/bin/berth", mounts: "mnt:[1]", args: []string{"berth"}},
		"100":  shim,
		"101":  shim,
	})
	try(t, os.Chown(filepath.Join(s.processes.proc, "100"), 65534, 65534))
	found, err := s.processes.find(t.Context())
	try(t, err)
	if len(found) != 1 || found[0].pid != 101 {
		t.Errorf("found %v", found)
	}
}

// The OCI runtimes that work for a container outlive its shim, and would make a process after the
// container was given up.
func TestARuntimeAtWorkIsRecognised(t *testing.T) {
	for args, want := range map[string]bool{
		"runc --root /r create --bundle /b " + thisID:                true,
		"runc --root /r restore --detach --image-path /i " + thisID:  true,
		"runc --root /r start " + thisID:                             true,
		"runc --root /r delete --force " + thisID:                    true,
		"runc --root /r restore --detach --image-path /i " + otherID: false,
		"runc --root /r state " + thisID:                             false,
		"crun --root /r restore " + thisID:                           false,
	} {
		if got := isRuntime(strings.Fields(args), "runc", thisID); got != want {
			t.Errorf("%s: %v", args, got)
		}
	}
}

// A search that hangs all the same holds up nobody but those who wait for it, and those not for
// long.
func TestASearchForShimsThatHangsEndsInAnError(t *testing.T) {
	s := node()
	dir := proc(t, map[string]entry{
		"self": {exe: "/usr/bin/berth", mounts: "mnt:[1]", args: []string{"berth"}},
		"100":  {exe: "/usr/bin/containerd-shim-runc-v2", mounts: "mnt:[1]"},
	})
	s.processes.proc = dir
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := s.processes.find(ctx); err == nil {
		t.Errorf("a search that hangs has found %v", found)
	}
	f, err := os.OpenFile(dir+"/100/cmdline", os.O_WRONLY, 0) // the search reads to the end
	try(t, err)
	try(t, f.Close())
	s.Wait()
}

// A pod in the host's PID namespace can give its processes the arguments of another pod's shim.
// They held that pod's release, and were killed in the shim's place.
func TestAProcessThatClaimsToBeAShimIsLeftAlone(t *testing.T) {
	forged := &exec.Cmd{Path: "/bin/sh", Args: []string{"containerd-shim-runc-v2", "-c", "read line", "-id", thisID}}
	in, err := forged.StdinPipe()
	try(t, err)
	try(t, forged.Start())
	s := node()
	defer s.Wait()
	found, err := s.processes.find(t.Context(), "runc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range found {
		if p.pid == forged.Process.Pid {
			t.Errorf("process %d was taken for a shim: %q", p.pid, p.args)
		}
	}
	try(t, s.EndLeft(t.Context(), Task{ID: thisID}))
	try(t, s.End(t.Context(), thisID))
	try(t, in.Close())
	if err := forged.Wait(); err != nil && forged.ProcessState.ExitCode() < 0 {
		t.Errorf("it was killed: %v", err)
	}
}

// A shim that has nothing left to do ends by itself, or is killed when its pod is given up.
func TestTheShimOfAPodIsEnded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		remain bool // it does not end by itself
	}{{"by itself", false}, {"by force", true}} {
		t.Run(tt.name, func(t *testing.T) {
			s := node()
			defer s.Wait()
			shim, child, end := startShim(t, thisID)
			s.Remember(otherID, child)
			if s.Knows(otherID) {
				t.Error("the shim of one pod was taken for that of another")
			}
			s.Remember(thisID, child)
			if !s.Knows(thisID) {
				t.Fatal("the shim was not recognised as the parent of its child")
			}
			if !tt.remain {
				end()
			}
			try(t, s.End(t.Context(), thisID))
			_ = shim.Wait()
			if killed := shim.ProcessState.ExitCode() < 0; killed != tt.remain {
				t.Errorf("killed: %v", killed)
			}
			if s.Knows(thisID) {
				t.Error("a shim that has ended is still remembered")
			}
			if tt.remain {
				_ = unix.Kill(int(child), unix.SIGKILL)
			}
		})
	}
}

// startShim starts this test's program as a shim of a pod, with one child. end has it end by
// itself, as a shim does without tasks.
func startShim(t *testing.T, pod string) (shim *exec.Cmd, child uint32, end func()) {
	t.Helper()
	self, err := os.Executable()
	try(t, err)
	path := filepath.Join(t.TempDir(), shimPrefix+"-runc-test")
	try(t, os.Link(self, path))
	shim = exec.Command(path, "-namespace", "k8s.io", "-id", pod)
	// The race detector sleeps for a second before a program ends, as long as a shim may take.
	shim.Env = append(os.Environ(), actAsShim+"=1", "GORACE=atexit_sleep_ms=0")
	in, err := shim.StdinPipe()
	try(t, err)
	out, err := shim.StdoutPipe()
	try(t, err)
	try(t, shim.Start())
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	return shim, child, func() { _ = in.Close() }
}

// actAsShim is the variable by which a process of this test's program knows that it is to be a
// shim.
const actAsShim = "BERTH_TEST_SHIM"

func TestMain(m *testing.M) {
	if os.Getenv(actAsShim) == "" {
		os.Exit(m.Run())
	}
	child := exec.Command("/bin/sleep", "1000")
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Println(child.Process.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = child.Process.Kill()
	_ = child.Wait()
}

// PROPERTIES 33: a process that cannot be looked at may be a shim. The search for it counted as "no
// shim there", so that what held it was struck off, and it stayed for ever.
func TestASearchThatCouldNotLookHasNotFoundNothing(t *testing.T) {
	const host = "mnt:[1]"
	shim := entry{
		exe:    "/usr/bin/containerd-shim-runc-v2",
		mounts: host,
		args:   []string{"containerd-shim-runc-v2", "-id", thisID},
	}
	self := entry{exe: "/usr/bin/berth", mounts: host, args: []string{"berth"}}
	for name, spoil := range map[string]func(dir string) error{
		"this process":   func(dir string) error { return os.Remove(dir + "/self/ns/mnt") },
		"its group":      func(dir string) error { return spoiled(dir + "/100/cgroup") },
		"its arguments":  func(dir string) error { return spoiled(dir + "/100/cmdline") },
		"its program":    func(dir string) error { return spoiled(dir + "/100/exe") },
		"any process":    func(dir string) error { return os.Rename(dir, dir+"-away") },
		"its namespaces": func(dir string) error { return spoiled(dir + "/100/ns/mnt") },
	} {
		s := node()
		s.processes.proc = proc(t, map[string]entry{"self": self, "100": shim})
		try(t, spoil(s.processes.proc))
		if found, err := s.processes.find(t.Context()); err == nil {
			t.Errorf("%s cannot be read: it has found %v", name, found)
		}
		if err := s.EndLeft(t.Context(), Task{ID: thisID}); err == nil || errdefs.IsNotFound(err) {
			t.Errorf("%s cannot be read: the search for what is left of its task says %v", name, err)
		}
		s.Wait()
	}
}

// spoiled has the reading of a file fail with an error that says nothing about a process.
func spoiled(path string) error {
	return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
}

// PROPERTIES 33: whoever had no descriptor left when the shim of a pod was to be noted looks for it
// when it is to end.
func TestAShimThatCouldNotBeNotedIsLookedForLater(t *testing.T) {
	s := node()
	defer s.Wait()
	shim, child, end := startShim(t, thisID)
	defer end()
	feed := starve(t)
	s.Remember(thisID, child)
	feed()
	try(t, s.End(t.Context(), thisID))
	_ = shim.Wait()
	if shim.ProcessState.ExitCode() >= 0 {
		t.Error("the shim was not killed")
	}
	_ = unix.Kill(int(child), unix.SIGKILL)
}

// starve takes all descriptors that this process may have, until feed is called.
func starve(t *testing.T) (feed func()) {
	t.Helper()
	var before unix.Rlimit
	try(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	none := before
	none.Cur = 3
	try(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	return func() { try(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }
}
