// SPDX-License-Identifier: Apache-2.0

package rootless

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// own is the group of the processes that are not a pod's, below the delegated one: cgroup v2 has
// either processes or controllers for groups below in a group, and not both (cgroups(7)).
const own = "berth.own"

// group is the cgroup that was delegated to the user.
type group struct {
	path string
	dir  *os.File
}

// enterGroup finds the cgroup that this process was started in, and moves the process into a group
// below, so that controllers can be turned on. It is an error if the group is not the user's.
func enterGroup() (*group, error) {
	path, err := delegated()
	if err != nil {
		return nil, fmt.Errorf("%w: berth gives each container a cgroup, and root or systemd has to delegate one to the user: "+
			"start it by `systemd-run --user --scope -p Delegate=yes berth rootless ...`", err)
	}
	_ = unix.Rmdir(filepath.Join(path, own)) // of one that was killed
	switch err := os.Mkdir(filepath.Join(path, own), 0o755); {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("another berth rootless is in cgroup %s: it needs one for itself", path)
	case err != nil:
		return nil, err
	}
	if err := move(filepath.Join(path, own)); err != nil {
		return nil, err
	}
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &group{path: path, dir: dir}, nil
}

// delegated returns the directory of this process's cgroup, if it is the user's.
func delegated() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	path := ""
	for line := range strings.Lines(string(text)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = p
		}
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(mount, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir := filepath.Join(mount, path)
		for _, file := range []string{".", "cgroup.procs", "cgroup.subtree_control"} {
			if err := unix.Access(filepath.Join(dir, file), unix.W_OK); err != nil {
				return "", fmt.Errorf("use cgroup %s: %w", dir, err)
			}
		}
		return dir, nil
	}
	return "", errors.New("find a cgroup: the unified hierarchy (cgroup v2) is not mounted")
}

func move(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("move berth into cgroup %s: %w", dir, err)
	}
	return nil
}

// turnOn turns all controllers on for the groups below dir.
func turnOn(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(text)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("turn the cgroup controller %s on: %w: other processes are in the cgroup that berth rootless "+
				"was started in; it needs one for itself", controller, err)
		}
		if err != nil {
			return fmt.Errorf("turn the cgroup controller %s on: %w", controller, err)
		}
	}
	return nil
}

// leave removes the empty groups below the delegated group, and moves this process back.
// Controllers can be turned off, and the process be moved, when no group below has them.
func (g *group) leave() error {
	defer g.dir.Close()
	if err := removeBelow(g.path, own); err != nil {
		return err
	}
	if text, err := os.ReadFile(filepath.Join(g.path, "cgroup.subtree_control")); err == nil {
		for controller := range strings.FieldsSeq(string(text)) {
			if err := os.WriteFile(filepath.Join(g.path, "cgroup.subtree_control"), []byte("-"+controller), 0); err != nil {
				return fmt.Errorf("turn the cgroup controller %s off: %w", controller, err)
			}
		}
	}
	if err := move(g.path); err != nil {
		return err
	}
	return removeBelow(g.path, "")
}

// removeBelow removes the groups below a group, the lowest first, but for the one that is called
// but.
func removeBelow(path, but string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == but {
			continue
		}
		below := filepath.Join(path, e.Name())
		if err := removeBelow(below, ""); err != nil {
			return err
		}
		if err := unix.Rmdir(below); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", strconv.Quote(below), err)
		}
	}
	return nil
}
