// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// leftovers looks for what a stopped daemon left of its pods, takes it away, and returns it as an error. What the daemon
// is right to leave (the bridge, the cgroups' parent, which the bench named) is taken away without a word.
func (n *node) leftovers() error {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) { // shims end by themselves, a moment after
		left = append(n.processes(false), n.mounts(false)...)
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	n.processes(true)
	n.mounts(true)
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

// processes are those whose command line names the directory: the daemon, its shims, runc, plug-ins.
func (n *node) processes(kill bool) (left []string) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range found {
		b, _ := os.ReadFile(p)
		if !bytes.Contains(b, []byte(n.dir+"/")) {
			continue
		}
		left = append(left, "process "+strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " ")))
		if pid, err := strconv.Atoi(strings.Split(p, "/")[2]); err == nil && kill {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return left
}

func (n *node) mounts(unmount bool) (left []string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[4], n.dir+"/") {
			left = append(left, "mount "+f[4])
			if unmount {
				_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
			}
		}
	}
	return left
}

// rules are masquerading rules of the network, which the bridge plug-in names in a comment.
func (n *node) rules() (left []string) {
	out, err := exec.Command("iptables", "-w", "-t", "nat", "-S").Output()
	if err != nil {
		return []string{fmt.Sprintf("list iptables rules: %v", err)}
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, strconv.Quote(n.network)) || strings.Contains(line, `\"`+n.network+`\"`) {
			left = append(left, "iptables "+strings.TrimSpace(line))
		}
	}
	return left
}

// cgroups removes the pods' cgroups: one that a process is in stays, and is told.
func (n *node) cgroups() (left []string) {
	for _, pattern := range []string{"/sys/fs/cgroup" + n.cgroup, "/sys/fs/cgroup/*" + n.cgroup} {
		tops, _ := filepath.Glob(pattern)
		for _, top := range tops {
			var dirs []string
			_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, p)
				}
				return nil
			})
			for i := len(dirs) - 1; i >= 0; i-- { // children first
				if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
					left = append(left, fmt.Sprintf("cgroup %v", err))
				}
				if dirs[i] != top {
					left = append(left, "cgroup "+dirs[i])
				}
			}
		}
	}
	return left
}
