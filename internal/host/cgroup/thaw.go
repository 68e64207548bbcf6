// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// freezer is where the groups of the freezer are mounted with cgroup v1.
const freezer = mount + "/freezer"

// Thaw lets the frozen processes of a group run on, regardless of which program froze them. dir is
// a result of [Of]. Groups below it stay as they are: a container may have frozen them itself. A
// group that is not frozen, or that is gone, is a success.
func Thaw(dir string) error {
	if path, ok := within(dir); ok {
		dir = filepath.Join(freezer, path)
	}
	_, err := thaw(dir)
	return err
}

// ThawAll thaws a group and all groups below it, in each hierarchy. thawed is true if one of them
// was frozen. An absent group is a success.
func ThawAll(dir string) (thawed bool, err error) {
	errs := []error{}
	for _, d := range everywhere(dir) {
		t, err := thawTree(d)
		thawed, errs = thawed || t, append(errs, err)
	}
	return thawed, errors.Join(errs...)
}

// thawTree thaws a group and all groups below it, in the hierarchy that dir is in.
func thawTree(dir string) (thawed bool, err error) {
	dirs, err := tree(dir)
	errs := []error{err}
	for _, d := range dirs {
		t, err := thaw(d)
		thawed, errs = thawed || t, append(errs, err)
	}
	return thawed, errors.Join(errs...)
}

// thaw thaws one group in the hierarchy that dir is in. Only the unified hierarchy and that of the
// freezer freeze processes. thawed is true if the group was frozen. If the state cannot be read,
// the group is thawed as well.
func thaw(dir string) (thawed bool, err error) {
	name, normal := "freezer.state", "THAWED"
	if V2() || strings.HasPrefix(dir, filepath.Join(mount, "unified")+"/") {
		name, normal = "cgroup.freeze", "0"
	}
	file := filepath.Join(dir, name)
	now, err := os.ReadFile(file)
	if absent(err) || err == nil && strings.TrimSpace(string(now)) == normal {
		return false, nil // nothing is frozen there, or in this hierarchy
	}
	if err := os.WriteFile(file, []byte(normal), 0); err != nil && !absent(err) {
		return false, fmt.Errorf("thaw %s: %w", dir, err)
	}
	return true, nil
}
