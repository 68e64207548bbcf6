// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"path/filepath"
	"strings"
)

// controllers are the cgroup controllers that pods need, and the effect of a missing one.
var controllers = []struct {
	name, v1 string
	s        Severity
	what     string
}{
	{"memory", "memory", Error, "memory limits do not hold, and OOM kills are not seen"},
	{"cpu", "cpu", Error, "CPU limits do not hold, and the kubelet does not start"},
	{"pids", "pids", Error, "limits of processes do not hold, and the kubelet does not start"},
	{"cpuset", "cpuset", Error, "CPUs cannot be assigned, and the kubelet does not start"},
	{"io", "blkio", Warning, "the statistics of pods lack their disks"},
	{"", "freezer", Warning, "containers cannot be frozen, and not be checkpointed"},
	{"", "devices", Error, "the devices of containers cannot be limited, and none starts"},
}

// mount is a line of mountinfo.
type mount struct {
	root, point, options, kind, super string
	shared                            bool
}

// mounts reads the mounts, in the order in which they were made.
func (m *machine) mounts() ([]mount, error) {
	text, err := m.read("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []mount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 2 {
			continue
		}
		mt := mount{
			root:    l[3],
			point:   strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(l[4]),
			options: l[5],
			kind:    r[0],
			shared:  strings.Contains(left, " shared:"),
		}
		if len(r) > 2 {
			mt.super = r[2]
		}
		all = append(all, mt)
	}
	return all, nil
}

func mountOf(all []mount, path string) (best mount) {
	for _, mt := range all {
		under := mt.point == "/" || path == mt.point || strings.HasPrefix(path, mt.point+"/")
		if under && len(mt.point) >= len(best.point) { // of two in one place, the later one is on top
			best = mt
		}
	}
	return best
}

func askCgroups(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	all, err := m.mounts()
	if err != nil {
		return nil, err
	}
	v1, unified := map[string]bool{}, ""
	for _, mt := range all {
		switch {
		case mt.kind == "cgroup2" && mt.point == "/sys/fs/cgroup":
			unified = mt.point
		case mt.kind == "cgroup":
			for _, name := range strings.Split(mt.super, ",") {
				v1[name] = true
			}
		}
	}
	if unified == "" && len(v1) == 0 {
		f.add(Error, "mount cgroup2 on /sys/fs/cgroup", "no cgroups are mounted: no container starts")
		return f.result()
	}
	have := v1
	if unified != "" {
		text, err := m.read(filepath.Join(unified, "cgroup.controllers"))
		if err != nil {
			return nil, err
		}
		have = map[string]bool{}
		for _, name := range strings.Fields(text) {
			have[name] = true
		}
	}
	for _, c := range controllers {
		name, do := c.v1, "mount the controller, and take cgroup_disable="+c.v1+" from the kernel's command line"
		if unified != "" {
			name, do = c.name, "take cgroup_disable="+c.name+" from the kernel's command line, and unmount the controller where it is mounted as one of cgroup v1"
		}
		if name != "" && !have[name] {
			f.add(c.s, do, "the cgroup controller %s is missing: %s", name, c.what)
		}
	}
	if m.cfg.Pod.RequireHugetlb && !have["hugetlb"] {
		f.add(Warning, "set pod.require_hugetlb to false, or boot a kernel that has the controller", "pod.require_hugetlb is set, and there is no controller hugetlb: containers with a hugepage limit are refused")
	}
	return f.result()
}
