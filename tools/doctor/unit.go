// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// unitDirs are the directories of systemd's units, the first choice first.
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// unit reads the settings of a unit of systemd, with those of its drop-ins: the last value of each.
// ok is false if there is no such unit.
func (m *machine) unit(name string) (set map[string]string, file string, ok bool, err error) {
	set = map[string]string{}
	take := func(text string) {
		for line := range strings.Lines(text) {
			key, v, is := strings.Cut(strings.TrimSpace(line), "=")
			if is && !strings.HasPrefix(key, "#") && !strings.HasPrefix(key, ";") {
				set[strings.TrimSpace(key)] = strings.TrimSpace(v)
			}
		}
	}
	for _, dir := range unitDirs {
		text, err := m.read(filepath.Join(dir, name))
		if absent(err) {
			continue
		}
		if err != nil {
			return nil, "", false, err
		}
		take(text)
		file, ok = filepath.Join(dir, name), true
		break
	}
	if !ok {
		return nil, "", false, nil
	}
	// A drop-in hides files of the same name in later directories, and they are read by name.
	from := map[string]string{}
	for _, dir := range slices.Backward(unitDirs) {
		entries, err := os.ReadDir(m.path(filepath.Join(dir, name+".d")))
		if err != nil && !absent(err) {
			return nil, "", false, m.named(filepath.Join(dir, name+".d"), err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".conf") {
				from[e.Name()] = filepath.Join(dir, name+".d", e.Name())
			}
		}
	}
	var names []string
	for n := range from {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		text, err := m.read(from[n])
		if err != nil {
			return nil, "", false, err
		}
		take(text)
	}
	return set, file, true, nil
}

func askUnit(_ context.Context, m *machine) ([]Finding, error) {
	var f findings
	u, file, ok, err := m.unit("berth.service")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errNothing("there is no berth.service")
	}
	const reload = ", then run systemctl daemon-reload and systemctl restart berth"
	put := func(line string) string { return "put " + line + " into " + file + reload }
	if v := u["KillMode"]; v != "process" {
		if v == "" {
			v = "control-group, the default"
		}
		f.add(Error, put("KillMode=process"), "the unit's KillMode is %s: systemd kills the shims of all pods when berth stops", v)
	}
	if v := u["Delegate"]; !slices.Contains([]string{"yes", "true", "on", "1"}, v) {
		f.add(Warning, put("Delegate=yes"), "the unit does not delegate its cgroup: systemd moves and removes cgroups that berth has made")
	}
	if n, err := strconv.Atoi(u["OOMScoreAdjust"]); err != nil || n > -900 {
		f.add(Warning, put("OOMScoreAdjust=-999"), "the unit's OOMScoreAdjust is %q: the OOM killer may take berth before a pod", u["OOMScoreAdjust"])
	}
	if v := u["TasksMax"]; v != "infinity" {
		f.add(Warning, put("TasksMax=infinity"), "the unit's TasksMax is %q: berth and the shims that begin in its cgroup run out of processes", v)
	}
	files := u["LimitNOFILE"]
	soft, _, _ := strings.Cut(files, ":")
	if n, err := strconv.Atoi(soft); soft != "infinity" && (err != nil || n < 65536) {
		f.add(Warning, put("LimitNOFILE=1048576"), "the unit's LimitNOFILE is %q: a node full of pods runs out of open files", files)
	}
	if n, err := strconv.Atoi(u["FileDescriptorStoreMax"]); err != nil || n == 0 {
		f.add(Warning, put("FileDescriptorStoreMax=4096"), "the unit keeps no descriptors: how a container ends while berth is away is not known from the kernel")
	}
	if v := u["Restart"]; v != "always" && v != "on-failure" {
		f.add(Warning, put("Restart=always"), "the unit's Restart is %q: a berth that crashes stays away", v)
	}
	return f.result()
}
