// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is what the node can do, read once at start.
type Host struct {
	CgroupV2      bool
	SystemdCgroup bool // the handler's cgroup driver
	Seccomp       bool
	// AppArmorDefault is the name of the loaded default profile; "" where AppArmor is off.
	AppArmorDefault string
	Capabilities    []string // all that a privileged container gets, CAP_ names
	SwapAccounting  bool
	// MinOOMScoreAdj is the lowest oom_score_adj that this process may give. -1000 with
	// CAP_SYS_RESOURCE.
	MinOOMScoreAdj int
	// Devices are the host's device nodes, for privileged containers.
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

// Degraded is something asked for that this host cannot do.
type Degraded struct{ What, Why string }

// ReadHost looks at the host. systemd says which cgroup driver the OCI runtime is told to use.
func ReadHost(systemd bool, capabilities []string, appArmorDefault string) (Host, error) {
	h := Host{SystemdCgroup: systemd, Capabilities: capabilities, AppArmorDefault: appArmorDefault, MinOOMScoreAdj: -1000, Devices: hostDevices}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return h, fmt.Errorf("look at cgroups: %w", err)
	}
	h.CgroupV2 = st.Type == unix.CGROUP2_SUPER_MAGIC
	h.SwapAccounting = h.CgroupV2
	if !h.CgroupV2 {
		_, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")
		h.SwapAccounting = err == nil
	}
	if err := unix.Prctl(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil {
		h.Seccomp = true
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return h, fmt.Errorf("look at own capabilities: %w", err)
	}
	if !mayLowerOOM(string(status)) {
		own, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return h, fmt.Errorf("look at own oom_score_adj: %w", err)
		}
		if h.MinOOMScoreAdj, err = strconv.Atoi(strings.TrimSpace(string(own))); err != nil {
			return h, fmt.Errorf("look at own oom_score_adj: %w", err)
		}
	}
	return h, nil
}

// mayLowerOOM: lowering oom_score_adj needs CAP_SYS_RESOURCE (proc(5)).
func mayLowerOOM(status string) bool {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return false
}

// hostDevices lists /dev, without what a container gets anyway.
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

// DeviceAt describes the device node at path, which is not followed if it is a link. False: it is none.
func DeviceAt(path string) (Device, bool) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return Device{}, false
	}
	d := Device{Path: path, Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)), Mode: st.Mode & 0o777, UID: st.Uid, GID: st.Gid}
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
