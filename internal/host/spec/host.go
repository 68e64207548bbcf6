// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Host describes the capabilities of the node. It is read once, when berth starts.
type Host struct {
	CgroupV2 bool
	Seccomp  bool
	// UnknownSyscalls returns those names of system calls for which the OCI runtime makes no rule.
	// It may be nil: it knows all.
	UnknownSyscalls func(names []string) ([]string, error)
	// ProveSeccomp returns nil if the filter of both profiles answers each call with the more severe
	// of the answers of the filters of base and own. If it is nil, profiles are not combined.
	ProveSeccomp func(base, own, both *specs.LinuxSeccomp) error
	// AppArmorDefault is the name of the default profile; "" if AppArmor is off.
	AppArmorDefault string
	// LoadAppArmor loads the default profile unless it is loaded. It may be nil: it is.
	LoadAppArmor func() error
	// AppArmorLoaded reports whether the kernel has a profile.
	AppArmorLoaded func(profile string) (bool, error)
	Capabilities   []string // all that a privileged container gets, CAP_ names
	SwapAccounting bool
	// RecursiveReadOnly is set if the kernel can make mounts below a mount read-only: Linux 5.12.
	RecursiveReadOnly bool
	// HugePages are the page sizes that the hugetlb controller can limit, such as 2MB; none if this
	// host does not have the controller.
	HugePages []string
	// Lacks lists those of the controllers cpu, cpuset and memory that the unified hierarchy of
	// this host does not have, or that are not delegated to the user who started berth.
	Lacks []string
	// RequireHugetlb makes berth refuse a hugepage limit, instead of leaving it out, if this host
	// does not have the hugetlb controller. The administrator sets it.
	RequireHugetlb bool
	// GIDs is how many groups there are, from 0 on, in the user namespace that this process is in; 0
	// in the initial one, which has all.
	GIDs uint32
	// MinOOMScoreAdj is the lowest oom_score_adj that this process may write: -1000 with
	// CAP_SYS_RESOURCE over the host.
	MinOOMScoreAdj int
	// MaxRlimits are the highest resource limits that this process may set, by their OCI names;
	// none with CAP_SYS_RESOURCE.
	MaxRlimits map[string]uint64
	// MountAt returns the mount that a path of this host is on. It may be nil: mounts can be
	// propagated from everywhere.
	MountAt func(path string) (MountPoint, error)
	// GroupsDelegated returns nil if a container may have its control group writable now, and
	// otherwise the reason and the remedy. It may be nil: it may.
	GroupsDelegated func() error
	// SELinux allocates labels; nil if SELinux is off.
	SELinux SELinux
	// Classes returns the classes of a container, by its name, its annotations and those of its pod.
	// It may be nil: there are none.
	Classes func(name string, own, pod map[string]string) (Classes, error)
	// Devices lists the host's device nodes, for privileged containers.
	Devices func() []Device
}

// Device is one device node of the host.
type Device struct {
	Path         string
	Type         string // b or c
	Major, Minor int64
	Mode         uint32
	UID, GID     uint32
}

// Classes are the classes of resources that a container is in.
type Classes struct {
	RDT     string // "" for none
	BlockIO *specs.LinuxBlockIO
}

// Degraded is a part of a request that this host cannot do, and without which the container or the
// sandbox works all the same.
type Degraded struct{ What, Why string }

// cgroupRoot is where the control groups of the host are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// ReadHost reads the description of this host, except for the default profile of AppArmor.
// capabilities are those of this process.
func ReadHost(capabilities []string) (Host, error) {
	h := Host{
		Capabilities:   capabilities,
		AppArmorLoaded: appArmorLoaded,
		MountAt:        mountAt,
		MinOOMScoreAdj: -1000,
		Devices:        hostDevices,

		GroupsDelegated: groupsDelegated,
	}
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return h, fmt.Errorf("read cgroups of host: %w", err)
	}
	h.CgroupV2 = st.Type == unix.CGROUP2_SUPER_MAGIC
	h.SwapAccounting = h.CgroupV2
	if !h.CgroupV2 {
		_, err := os.Stat(filepath.Join(cgroupRoot, "memory/memory.memsw.limit_in_bytes"))
		h.SwapAccounting = err == nil
	}
	var err error
	if h.Lacks, err = readLacks(h.CgroupV2); err != nil {
		return h, fmt.Errorf("read cgroup controllers of host: %w", err)
	}
	if h.RecursiveReadOnly, err = kernelIsAtLeast(5, 12); err != nil {
		return h, err
	}
	if h.HugePages, err = readHugePages(h.CgroupV2); err != nil {
		return h, fmt.Errorf("read huge page sizes of host: %w", err)
	}
	if err := unix.Prctl(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil {
		h.Seccomp = true
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return h, fmt.Errorf("read own capabilities: %w", err)
	}
	if h.GIDs, err = readGIDs(); err != nil {
		return h, err
	}
	if h.GIDs > 0 || !hasSysResource(string(status)) { // in a user namespace it is not about the host
		own, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return h, fmt.Errorf("read own oom_score_adj: %w", err)
		}
		if h.MaxRlimits, err = readMaxRlimits(); err != nil {
			return h, err
		}
		if h.MinOOMScoreAdj, err = strconv.Atoi(strings.TrimSpace(string(own))); err != nil {
			return h, fmt.Errorf("read own oom_score_adj: %w", err)
		}
	}
	return h, nil
}

// groups returns how many groups there are, from 0 on.
func (h Host) groups() uint32 { return cmp.Or(h.GIDs, math.MaxUint32) }

// readGIDs returns how many groups there are from 0 on, without a gap, in the user namespace that
// this process is in, and 0 in the initial one (user_namespaces(7)).
func readGIDs() (uint32, error) {
	b, err := os.ReadFile("/proc/self/gid_map")
	if err != nil {
		return 0, fmt.Errorf("read the groups of own user namespace: %w", err)
	}
	return gidsIn(string(b))
}

// gidsIn is readGIDs for the lines of a gid_map, which the kernel sorts.
func gidsIn(lines string) (uint32, error) {
	var next uint64
	for line := range strings.Lines(lines) {
		var inside, outside, n uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err != nil {
			return 0, fmt.Errorf("read the groups of own user namespace: %q: %w", line, err)
		}
		if inside == next {
			next += n
		}
	}
	if next >= math.MaxUint32 {
		return 0, nil
	}
	return uint32(next), nil
}

// appArmorLoaded looks for a profile among those that the kernel has: a name and a mode in each
// line.
func appArmorLoaded(profile string) (bool, error) {
	loaded, err := os.ReadFile("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return false, fmt.Errorf("read the AppArmor profiles of host: %w", err)
	}
	for line := range strings.Lines(string(loaded)) {
		if i := strings.LastIndex(line, " ("); i >= 0 && line[:i] == profile {
			return true, nil
		}
	}
	return false, nil
}

// kernelIsAtLeast reports whether the host runs a Linux of a version, or a newer one.
func kernelIsAtLeast(major, minor int) (bool, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false, fmt.Errorf("read version of kernel: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var has struct{ major, minor int }
	if _, err := fmt.Sscanf(release, "%d.%d", &has.major, &has.minor); err != nil {
		return false, fmt.Errorf("read version of kernel %q: %w", release, err)
	}
	return has.major > major || has.major == major && has.minor >= minor, nil
}

// hasSysResource reports whether the process of a /proc/PID/status has CAP_SYS_RESOURCE, which
// lowering oom_score_adj and raising a hard resource limit need (proc(5), setrlimit(2)).
func hasSysResource(status string) bool {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return false
}

// readLacks returns which of the controllers that limits need are not in the unified hierarchy.
func readLacks(v2 bool) ([]string, error) {
	if !v2 {
		return nil, nil // a hierarchy of v1 that is not mounted is the OCI runtime's to report
	}
	b, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	has := strings.Fields(string(b))
	return slices.DeleteFunc([]string{"cpu", "cpuset", "memory"}, func(c string) bool { return slices.Contains(has, c) }), nil
}

// readHugePages returns the page sizes that the hugetlb controller can limit, the smallest first.
func readHugePages(v2 bool) ([]string, error) {
	if v2 {
		b, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(strings.Fields(string(b)), "hugetlb") {
			return nil, nil
		}
	} else if matches, err := filepath.Glob(filepath.Join(cgroupRoot, "hugetlb/hugetlb.*.limit_in_bytes")); err != nil || len(matches) == 0 {
		return nil, err // the controller is absent, or mounted nowhere
	}
	entries, err := os.ReadDir("/sys/kernel/mm/hugepages")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var sizes []string
	for _, e := range entries {
		if s := pageSize(e.Name()); s != "" {
			sizes = append(sizes, s)
		}
	}
	slices.SortFunc(sizes, func(a, b string) int {
		return cmp.Or(cmp.Compare(unitRank(a), unitRank(b)), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	return sizes, nil
}

func unitRank(size string) int { return strings.IndexByte("KMG", size[len(size)-2]) }

// pageSize returns the hugetlb controller's name for the page size of a directory in
// /sys/kernel/mm/hugepages: 2MB for hugepages-2048kB. It is "" for any other name.
func pageSize(dir string) string {
	v, ok := strings.CutPrefix(dir, "hugepages-")
	if !ok {
		return ""
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(v, "kB"), 10, 64)
	if err != nil || !strings.HasSuffix(v, "kB") {
		return ""
	}
	unit := 0
	for n >= 1024 && unit < 2 {
		n >>= 10
		unit++
	}
	return strconv.FormatUint(n, 10) + []string{"KB", "MB", "GB"}[unit]
}

// hostDevices lists the device nodes in /dev, except for those in file systems of which every
// container gets its own.
func hostDevices() []Device {
	var list []Device
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, e := range entries {
			path := dir + "/" + e.Name()
			if e.IsDir() {
				switch e.Name() {
				case "pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev":
				default:
					walk(path)
				}
				continue
			}
			if d, ok := DeviceAt(path); ok && e.Name() != "console" {
				list = append(list, d)
			}
		}
	}
	walk("/dev")
	return list
}

// DeviceAt returns the device node at path. A link is not followed. It is false for anything that
// is not a device node.
func DeviceAt(path string) (Device, bool) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return Device{}, false
	}
	d := Device{
		Path:  path,
		Major: int64(unix.Major(st.Rdev)),
		Minor: int64(unix.Minor(st.Rdev)),
		Mode:  st.Mode & 0o777,
		UID:   st.Uid,
		GID:   st.Gid,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		d.Type = "b"
	case unix.S_IFCHR:
		d.Type = "c"
	default:
		return Device{}, false
	}
	return d, true
}
