// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes the machine that the figures were measured on.
func machine(tempDir string) []property {
	var u unix.Utsname
	kernel := ""
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	cgroup := "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroup = "v2"
	}
	return []property{
		{"processor", fmt.Sprintf("%s, %d visible", field("/proc/cpuinfo", "model name"), runtime.NumCPU())},
		{"memory", gib(field("/proc/meminfo", "MemTotal"))},
		{"kernel", kernel},
		{"cgroups", cgroup},
		{"file system of all state", fileSystem(tempDir)},
	}
}

// field returns the first value of a name in a file of "name : value" lines.
func field(path, name string) string {
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func gib(kb string) string {
	var n float64
	if _, err := fmt.Sscanf(kb, "%f kB", &n); err != nil {
		return kb
	}
	return fmt.Sprintf("%.1f GiB", n/(1<<20))
}

// fileSystem returns the type of the file system that dir is on: that of the mount with the longest
// path above dir.
func fileSystem(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "unknown"
	}
	b, _ := os.ReadFile("/proc/self/mounts")
	best, kind := "", "unknown"
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 3 || len(f[1]) < len(best) {
			continue
		}
		if f[1] == "/" || dir == f[1] || strings.HasPrefix(dir, f[1]+"/") {
			best, kind = f[1], f[2]
		}
	}
	return kind
}

func load() (l float64) {
	b, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(b), &l)
	return l
}

// runcVersion is the version in the first line that the built runc prints.
func runcVersion(build string) string {
	out, err := exec.Command(build+"/libexec/runc", "--version").Output()
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, "runc version ")
}
