// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// group makes a group that has a memory controller. It is removed when the test ends.
func group(t testing.TB) string {
	t.Helper()
	base := filepath.Join(mount, "memory")
	if V2() {
		base = mount
	}
	dir := filepath.Join(base, fmt.Sprintf("berth-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("these tests need to make a cgroup as root: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = KillAll(ctx, dir)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func join(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `echo $$ > "$0/cgroup.procs"; exec "$@"`, dir}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestGroupOfAProcess(t *testing.T) {
	dir := group(t)
	cmd := join(t, dir, "sleep", "1000")
	for {
		if d, err := Of(uint32(cmd.Process.Pid)); err == nil && d == dir {
			break
		}
	}
	if empty, err := Empty(dir); empty || err != nil {
		t.Fatal(empty, err)
	}
	if err := KillAll(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if empty, err := Empty(dir); !empty || err != nil {
		t.Fatal(empty, err)
	}
}

func TestKillAllEndsProcessesThatFork(t *testing.T) {
	dir := group(t)
	cmd := join(t, dir, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (while :; do sleep 0.01; done) & done; wait")
	for {
		if p, _ := Procs(dir); len(p) > 8 {
			break
		}
	}
	if err := KillAll(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// PROPERTIES 10: systemd removes a scope's group once it is empty. An absent counter is not a
// verdict.
func TestTheOOMKillsOfAGroupThatVanishedAreNotZero(t *testing.T) {
	dir := group(t)
	if n, err := OOMKills(dir); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := OOMKills(filepath.Join(dir, "vanished")); !errdefs.IsNotFound(err) {
		t.Errorf("a group that is gone: %v", err)
	}
	if V2() { // give its children the controller as well
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			t.Fatal(err)
		}
	}
	// The group vanishes at any point of the reading: between open(2) and read(2) too.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	child := filepath.Join(dir, "scope")
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := errors.Join(os.Mkdir(child, 0o755), unix.Rmdir(child)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	there, gone := 0, 0
	for there < 50 || gone < 50 {
		switch n, err := OOMKills(child); {
		case err == nil && n == 0:
			there++
		case errdefs.IsNotFound(err):
			gone++
		default:
			t.Fatalf("%d kills, %v", n, err)
		}
	}
	close(stop)
	wg.Wait()
}

func BenchmarkOOMKills(b *testing.B) {
	dir := group(b)
	for b.Loop() {
		if _, err := OOMKills(dir); err != nil {
			b.Fatal(err)
		}
	}
}

func TestOOMKillsAreCounted(t *testing.T) {
	dir := group(t)
	limit := "memory.limit_in_bytes"
	if V2() {
		limit = "memory.max"
	}
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(8<<20)), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := OOMKills(dir); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	cmd := join(t, dir, "/bin/sh", "-c", "x=$(tail /dev/zero)")
	_ = cmd.Wait()
	if n, err := OOMKills(dir); n == 0 || err != nil {
		t.Fatalf("%d kills, %v", n, err)
	}
}

func TestAnAbsentGroupIsEmpty(t *testing.T) {
	dir := filepath.Join(mount, "memory", "not-there")
	empty, err := Empty(dir)
	if err := errors.Join(err, KillAll(t.Context(), dir)); err != nil || !empty {
		t.Fatal(empty, err)
	}
}

// A process that was killed before it was counted had not been there, with cgroup v2.
func TestAGroupThatWasLeftIsRemovedWithWhatRunsInIt(t *testing.T) {
	hierarchies := []string{mount}
	if !V2() {
		hierarchies = []string{mount + "/memory", mount + "/pids", mount + "/freezer"}
	}
	path := fmt.Sprintf("/berth-test-%d-%d/id", os.Getpid(), time.Now().UnixNano())
	for _, h := range hierarchies {
		if err := os.MkdirAll(h+path+"/child", 0o755); err != nil {
			t.Fatalf("these tests need to make a cgroup as root: %v", err)
		}
		t.Cleanup(func() {
			if err := os.Remove(h + filepath.Dir(path)); err != nil {
				t.Error(err)
			}
		})
	}
	cmd := join(t, hierarchies[0]+path+"/child", "sleep", "1000")
	for {
		if empty, err := Empty(hierarchies[0] + path); err == nil && !empty {
			break
		}
	}
	if of, err := Of(uint32(cmd.Process.Pid)); err != nil || of != Dir(path+"/child") {
		t.Errorf("it is in %s, not in %s: %v", of, Dir(path+"/child"), err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for _, first := range []bool{true, false} { // the second finds nothing
		if found, err := RemoveAll(t.Context(), path); err != nil || found != first {
			t.Fatalf("found a process: %t, %v", found, err)
		}
	}
	<-ended
	for _, h := range hierarchies {
		if _, err := os.Stat(h + path); err == nil {
			t.Errorf("%s is left", h+path)
		}
	}
	if _, err := RemoveAll(t.Context(), "/../"); err == nil {
		t.Error("the root group was accepted")
	}
}
