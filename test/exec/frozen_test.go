// SPDX-License-Identifier: Apache-2.0

package exec

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/host/pidfd"
	"berth/internal/serve/join"
	"berth/test/command"
)

// unified returns the directory of a container's group in the unified hierarchy.
func (c *container) unified() string {
	c.t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil {
			return filepath.Join(root, c.spec.Linux.CgroupsPath)
		}
	}
	c.t.Fatal("this host has no unified hierarchy")
	return ""
}

// PROPERTIES 45: a group may be frozen at any instant, or the group above it, where the file of
// the container's own group does not say so. berth was frozen with it, whatever its deadline: it
// waited in the fork.
func TestAFrozenGroupDoesNotHoldBerth(t *testing.T) {
	ct := start(t, func(*specs.Spec, string) {})
	plan, err := ct.joiner.Prepare(t.Context(), ct.target(), []string{"/probe", "exit"})
	if err != nil {
		t.Fatal(err)
	}
	freeze := filepath.Join(filepath.Dir(ct.unified()), "cgroup.freeze")
	if err := os.WriteFile(freeze, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile(freeze, []byte("0"), 0) }()
	// A program that thaws it after a while: this one may be held.
	thaw := command.New(t, probe, "thaw", freeze)
	if err := thaw.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = thaw.Process.Kill()
		_ = thaw.Wait()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = plan.Start(ctx, devNull(t), devNull(t), func(pidfd.Process) error { return nil })
	runtime.GC()
	var why *join.Refusal
	if !errors.As(err, &why) || why.Why != join.Failed {
		t.Errorf("got %v", err)
	}
	nothingIsLeft(t, int(ct.first.Pid), thaw.Process.Pid)
	if b, err := os.ReadFile(freeze); string(b) != "1\n" {
		t.Errorf("it was held until the group was thawed: %q %v", b, err)
	}
}
