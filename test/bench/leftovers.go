// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// leftovers finds the remains of a stopped daemon's pods, removes them, and returns them as an
// error. The bridge and the parent of the cgroups, which a daemon rightly leaves, are removed
// silently.
func (n *node) leftovers() error {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if len(n.processes())+len(n.mounts()) == 0 { // shims end by themselves, a moment after
			break
		}
	}
	for pid, command := range n.processes() {
		left = append(left, "process "+command)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, m := range n.mounts() {
		left = append(left, "mount "+m)
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
	left = append(left, n.rules()...)
	if l, err := netlink.LinkByName(n.bridge); err == nil {
		if err := netlink.LinkDel(l); err != nil {
			left = append(left, fmt.Sprintf("bridge %s: %v", n.bridge, err))
		}
	}
	left = append(left, n.cgroups()...)
	if len(left) > 0 {
		return fmt.Errorf("%s left behind:\n  %s", n.name, strings.Join(left, "\n  "))
	}
	return nil
}

// processes are the processes with the directory in their command line: the daemon, its shims,
// runc, plug-ins.
func (n *node) processes() map[int]string {
	all := map[int]string{}
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range found {
		b, _ := os.ReadFile(p)
		if pid, err := strconv.Atoi(strings.Split(p, "/")[2]); err == nil && strings.Contains(string(b), n.dir+"/") {
			all[pid] = strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return all
}

func (n *node) mounts() (all []string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[4], n.dir+"/") {
			all = append(all, f[4])
		}
	}
	return all
}

// rules are masquerading rules of the network, which the bridge plug-in names in a comment. They
// are not removed.
func (n *node) rules() (left []string) {
	out, err := exec.Command("iptables", "-w", "-t", "nat", "-S").Output()
	if err != nil {
		return []string{fmt.Sprintf("list iptables rules: %v", err)}
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, `\"`+n.network+`\"`) {
			left = append(left, "iptables "+strings.TrimSpace(line))
		}
	}
	return left
}

// cgroups removes the cgroups of the pods, and ends the processes in them: containers, which no
// command line gives away.
func (n *node) cgroups() (left []string) {
	var tops, dirs []string
	for _, pattern := range []string{"/sys/fs/cgroup" + n.cgroup, "/sys/fs/cgroup/*" + n.cgroup} {
		found, _ := filepath.Glob(pattern)
		tops = append(tops, found...)
	}
	for _, top := range tops {
		_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
				if p != top && top == tops[0] { // with cgroup v1 each group is in every hierarchy
					left = append(left, "cgroup "+p)
				}
			}
			return nil
		})
	}
	for range 100 { // a process that was killed leaves its group a moment after
		busy := false
		for _, dir := range slices.Backward(dirs) { // children first
			b, _ := os.ReadFile(dir + "/cgroup.procs")
			for _, p := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(p); err == nil && pid > 1 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				busy = true
			}
		}
		if !busy {
			return left
		}
		time.Sleep(20 * time.Millisecond)
	}
	return append(left, "cgroups that cannot be removed")
}
