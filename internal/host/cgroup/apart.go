// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Apart is a control group beside berth's own. Processes that outlive berth are moved there, so
// that a signal to all processes of berth's unit, as `systemctl kill` sends it, does not reach
// them. Both groups have the same parent, and its limits.
//
// There is one in each hierarchy in which berth's group is that of its unit. The group is not a
// unit of systemd's: a scope would be stopped at a shutdown, beside berth, which needs the shims
// then. systemd leaves alone groups that it did not make.
type Apart struct {
	own    []string // directories of berth's own group; the last is that by which a unit is killed
	beside []string // the directory beside each
}

// OpenApart returns the group beside berth's own, which is made when a process is moved. It returns
// nil if berth is in the root group, which is nobody's unit.
func OpenApart() (*Apart, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find berth's own cgroup: %w", err)
	}
	return apart(string(text), mount, V2()), nil
}

// apart returns the group beside the one that a process has by the text of its /proc/PID/cgroup.
func apart(text, mount string, v2 bool) *Apart {
	groups := map[string]string{} // by directory of the hierarchy
	unit := ""                    // the group in a hierarchy that a service manager goes by
	last := ""
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(f) != 3 || f[2] == "/" {
			continue
		}
		name, named := strings.CutPrefix(f[1], "name=")
		dir := filepath.Join(mount, name)
		switch {
		case f[0] == "0" && v2:
			dir = mount
		case f[0] == "0":
			dir = filepath.Join(mount, "unified")
		}
		groups[dir] = filepath.Clean("/" + f[2])
		if named || f[0] == "0" {
			unit, last = groups[dir], dir
		}
	}
	if unit == "" {
		return nil
	}
	beside := strings.TrimSuffix(strings.TrimSuffix(unit, ".service"), ".scope") + "-shims"
	a := &Apart{}
	delete(groups, last)
	for dir, group := range groups {
		if _, err := os.Stat(filepath.Join(dir, unit)); group == unit && err == nil {
			a.add(filepath.Join(dir, unit), filepath.Join(dir, beside))
		}
	}
	a.add(filepath.Join(last, unit), filepath.Join(last, beside))
	return a
}

func (a *Apart) add(own, beside string) {
	a.own, a.beside = append(a.own, own), append(a.beside, beside)
}

// Left lists the other processes in berth's own group.
func (a *Apart) Left() ([]int, error) {
	pids, err := Procs(a.own[len(a.own)-1])
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == os.Getpid() }), err
}

// Move moves a process into the group beside berth's own. A process that has ended needs no move.
func (a *Apart) Move(pid int) error {
	for _, dir := range a.beside {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a cgroup beside berth's: %w", err)
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("move process %d out of berth's cgroup: %w", pid, err)
		}
	}
	return nil
}

// Remove removes the group if nothing is in it.
func (a *Apart) Remove() {
	for _, dir := range a.beside {
		remove(dir)
	}
}
