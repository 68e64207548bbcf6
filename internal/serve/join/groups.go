// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// hierarchy is one of control groups that is mounted.
type hierarchy struct {
	dir     string
	unified bool
	// names are the options of the mount, among which a v1 hierarchy has its controllers, or
	// name=NAME.
	names []string
}

// hierarchies are the cgroup hierarchies of this host. They do not change while berth runs.
var hierarchies = sync.OnceValues(func() ([]hierarchy, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseHierarchies(string(b)), nil
})

// parseHierarchies reads proc_pid_mountinfo(5). Mounts of a part of a hierarchy do not count.
func parseHierarchies(mountinfo string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 || f[3] != "/" || !strings.HasPrefix(f[4], "/sys/fs/cgroup") {
			continue
		}
		switch g[0] {
		case "cgroup":
			out = append(out, hierarchy{dir: f[4], names: strings.Split(g[2], ",")})
		case "cgroup2":
			out = append(out, hierarchy{dir: f[4], unified: true})
		}
	}
	return out
}

// groups are the control groups of one container.
type groups struct {
	unified string   // its directory; "" if there is none to join
	legacy  []string // its directories in v1 hierarchies
	freezer string   // the file that shows whether it is paused
}

// membership is /proc/PID/cgroup: a path for each hierarchy.
func membership(text []byte) map[string]string {
	out := map[string]string{}
	for line := range bytes.Lines(bytes.TrimSpace(text)) {
		if f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3); len(f) == 3 {
			out[f[1]] = f[2] // by controllers; "" is v2
		}
	}
	return out
}

// groupsOf finds the groups that a container has at path. Its first process has to be in them, or
// in the group of this process: then it was not moved, and the OCI runtime does not move processes
// either.
func groupsOf(path string, hs []hierarchy, of, own map[string]string) (groups, error) {
	var g groups
	if path == "" || path == "/" {
		return g, refuse(Groups, "the container's group is not known")
	}
	for names, at := range of {
		i := slices.IndexFunc(hs, func(h hierarchy) bool {
			if names == "" || h.unified {
				return names == "" && h.unified
			}
			return !slices.ContainsFunc(strings.Split(names, ","), func(n string) bool { return !slices.Contains(h.names, n) })
		})
		if at != path {
			if own[names] == at {
				continue
			}
			return g, refuse(Groups, "the container is in %s of %q, and not in %s", at, names, path)
		}
		if i < 0 {
			return g, refuse(Groups, "hierarchy %q is not mounted", names)
		}
		dir := filepath.Join(hs[i].dir, path)
		switch {
		case hs[i].unified:
			g.unified = dir
			if len(hs) == 1 {
				g.freezer = filepath.Join(dir, "cgroup.freeze")
			}
		default:
			g.legacy = append(g.legacy, dir)
			if slices.Contains(strings.Split(names, ","), "freezer") {
				g.freezer = filepath.Join(dir, "freezer.state")
			}
		}
	}
	if g.unified == "" && len(g.legacy) == 0 {
		return g, refuse(Groups, "the container is in no group of its own")
	}
	slices.Sort(g.legacy)
	return g, nil
}

// find finds the groups of the container whose first process is pid.
func find(path string, pid uint32) (groups, error) {
	hs, err := hierarchies()
	if err != nil {
		return groups{}, refuse(Groups, "%v", err)
	}
	var texts [2]map[string]string
	for i, who := range []string{strconv.FormatUint(uint64(pid), 10), "self"} {
		b, err := os.ReadFile("/proc/" + who + "/cgroup")
		if err != nil {
			return groups{}, refuse(Groups, "%v", err)
		}
		texts[i] = membership(b)
	}
	return groupsOf(path, hs, texts[0], texts[1])
}

// checkRuns refuses a container that is paused, because a process that joins it would be paused,
// too.
func (g groups) checkRuns() error {
	if g.freezer == "" {
		return nil
	}
	b, err := os.ReadFile(g.freezer)
	if errors.Is(err, fs.ErrNotExist) && filepath.Base(g.freezer) == "freezer.state" {
		return nil // the root has none, and an old kernel
	}
	if err != nil {
		return refuse(Groups, "ask whether the container is paused: %v", err)
	}
	if s := strings.TrimSpace(string(b)); s != "THAWED" && s != "0" {
		return refuse(Groups, "the container is paused: %s", s)
	}
	return nil
}

// open opens the files needed to join: the unified directory, nil for none, and a file of each v1
// group.
func (g groups) open() (unified *os.File, tasks []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(append(tasks, unified))
			err = refuse(Groups, "%v", err)
		}
	}()
	if g.unified != "" {
		if unified, err = os.Open(g.unified); err != nil {
			return nil, nil, err
		}
	}
	for _, dir := range g.legacy {
		f, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
		if err != nil {
			return unified, tasks, fmt.Errorf("open a group: %w", err)
		}
		tasks = append(tasks, f)
	}
	return unified, tasks, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
