// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// PROPERTIES 76: the group beside that of berth's unit, in each hierarchy that the unit is in.
func TestTheGroupBesideThatOfTheUnit(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		v2   bool
		want string // the directories beside, that of the manager last
	}{
		"a root group is not a unit's":   {"9:name=systemd:/\n1:cpu:/\n0::/\n", false, ""},
		"a limit on this process is not": {"4:memory:/jail\n0::/\n", false, ""},
		"v2":                             {"0::/system.slice/berth.service\n", true, "system.slice/berth-shims"},
		"without systemd":                {"0::/openrc.berth\n", true, "openrc.berth-shims"},
		"v1": {"5:cpuset:/\n4:memory:/s.slice/b.service\n3:pids:/b.service\n1:name=systemd:/s.slice/b.service\n", false,
			"memory/s.slice/b-shims systemd/s.slice/b-shims"},
		"v1 with an empty v2": {"2:cpu,cpuacct:/u.slice/b.service\n1:name=systemd:/u.slice/b.service\n0::/u.slice/b.service\n", false,
			"cpu,cpuacct/u.slice/b-shims systemd/u.slice/b-shims unified/u.slice/b-shims"},
	} {
		t.Run(name, func(t *testing.T) {
			mount := t.TempDir()
			for line := range strings.Lines(test.text) {
				f := strings.Split(strings.TrimSpace(line), ":")
				dir := filepath.Join(strings.TrimPrefix(f[1], "name="), f[2])
				if f[0] == "0" && !test.v2 {
					dir = filepath.Join("unified", f[2])
				}
				if err := os.MkdirAll(filepath.Join(mount, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			a := apart(test.text, mount, test.v2)
			if a == nil {
				a = &Apart{}
			}
			var got []string
			for i, dir := range a.beside {
				rel, _ := filepath.Rel(mount, dir)
				got = append(got, rel)
				if _, err := os.Stat(a.own[i]); err != nil || filepath.Dir(a.own[i]) != filepath.Dir(dir) {
					t.Errorf("beside %s: %s %v", a.own[i], dir, err)
				}
			}
			if slices.Sort(got); strings.Join(got, " ") != test.want {
				t.Errorf("beside the unit: %q, want %q", got, test.want)
			}
		})
	}
}

// PROPERTIES 76: a process in a unit's group leaves it, and is not killed with it.
func TestAProcessLeavesTheUnit(t *testing.T) {
	g, _ := groupsOf(t)
	c, err := g.New("unit")
	if err != nil {
		t.Fatal(err)
	}
	stays, leaves := started(t, c, "echo; exec sleep 1000"), started(t, c, "echo; exec sleep 1000")
	a := &Apart{own: []string{c.path}, beside: []string{c.path + "-shims"}}
	t.Cleanup(a.Remove)
	for _, pid := range []int{leaves.Process.Pid, leaves.Process.Pid, 1 << 30} { // the last has ended
		if err := a.Move(pid); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := a.Left(); err != nil || !slices.Equal(left, []int{stays.Process.Pid}) {
		t.Errorf("left in the group: %v %v", left, err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	killed(t, stays)
	if pids, err := Procs(a.beside[0]); err != nil || !slices.Equal(pids, []int{leaves.Process.Pid}) {
		t.Errorf("in the group beside it: %v %v", pids, err)
	}
	if err := leaves.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed(t, leaves)
	if a.Remove(); c.Abandon() != nil {
		t.Error("the unit's group is not removed")
	}
	if _, err := os.Stat(a.beside[0]); err == nil {
		t.Error("an empty group is left")
	}
}
