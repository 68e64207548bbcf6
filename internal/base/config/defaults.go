// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Defaults are what the containers of a handler get if their pod says nothing about it.
type Defaults struct {
	Seccomp            string   `toml:"seccomp" doc:"Seccomp profile of containers that ask for none and are not privileged: RuntimeDefault, or the path of a profile. Empty: none."`
	SeccompRuntime     string   `toml:"seccomp_runtime_default" doc:"File of the seccomp profile that RuntimeDefault stands for in containers. It is read for each container. Empty: berth's own, which is that of containerd."`
	SeccompPrivileged  string   `toml:"seccomp_privileged" doc:"Seccomp profile of privileged containers, as in seccomp. Empty: none."`
	AppArmor           string   `toml:"apparmor" doc:"Name of the AppArmor profile of containers that ask for none or for RuntimeDefault and are not privileged. It has to be loaded. Empty: berth's own."`
	Capabilities       []string `toml:"capabilities" doc:"Capabilities of a container, to which its pod adds some and from which it drops some. Empty: the fourteen that containerd and Docker have."`
	Sysctls            []string `toml:"sysctls" doc:"Sysctls of pods as NAME=VALUE, of namespaces that a pod does not share with the host. Those of the pod take precedence."`
	Env                []string `toml:"env" doc:"Variables as NAME=VALUE. Those of the image and of the pod take precedence."`
	Annotations        []string `toml:"annotations" doc:"Annotations as NAME=VALUE, for the OCI runtime. Those that the pod may pass take precedence."`
	Ulimits            []string `toml:"ulimits" doc:"Resource limits as NAME=SOFT:HARD or NAME=BOTH, such as nofile=1024:524288 or memlock=unlimited, besides berth's own."`
	PidsLimit          int64    `toml:"pids_limit" doc:"Number of processes of a container, besides podPidsLimit of the kubelet, which is for the whole pod. 0: any number."`
	ReadonlyRootfs     bool     `toml:"readonly_rootfs" doc:"Make the root of each container that is not privileged read-only."`
	Mounts             []string `toml:"mounts" doc:"Mounts of paths of this host as HOST:CONTAINER or HOST:CONTAINER:ro. Those of the pod take precedence."`
	Timezone           string   `toml:"timezone" doc:"Time zone, as /etc/localtime: Local for that of this host, or a name of /usr/share/zoneinfo such as Europe/Berlin. Empty: that of the image."`
	IgnoreImageVolumes bool     `toml:"ignore_image_volumes" doc:"Make no volumes where an image declares some: what is written there is written to the layer of the container."`
	Devices            []string `toml:"devices" doc:"Device nodes as HOST, HOST:CONTAINER or HOST:CONTAINER:rwm, or directories of them."`
	AllowedDevices     []string `toml:"allowed_devices" doc:"Device nodes of this host that a pod may name in its annotation devices.crio.io or io.kubernetes.cri-o.Devices, in the form of devices and separated by commas. Empty: the annotations have no effect."`
	DeviceOwnership    bool     `toml:"device_ownership" doc:"Give the device nodes that a container asks for to the user and group that its securityContext names, instead of those of the host. containerd and CRI-O call it device_ownership_from_security_context."`
	AllDevices         bool     `toml:"privileged_all_devices" doc:"Let privileged containers use and make every device node where privileged_without_host_devices keeps the nodes of the host from them."`
	CgroupWritable     string   `toml:"cgroup_writable" doc:"Which containers have their own control group writable, where the host has cgroup v2 mounted with nsdelegate, besides those that ask for it by CRI. annotation: those of a pod that has the annotation cgroup2-mount-hierarchy-rw.crio.io or io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw with the value true. userns: also those of pods with a user namespace. always: all. Empty: no others."`
	HooksDirs          []string `toml:"hooks_dirs" doc:"Directories of OCI hooks in the form of oci-hooks(5), which choose their containers by annotations, commands and mounts. A file in a later directory takes the place of one of the same name. They are read for each container."`
}

// Values of cgroup_writable.
const (
	CgroupsAnnotated = "annotation"
	CgroupsUserns    = "userns"
	CgroupsAlways    = "always"
)

// RuntimeDefault is the name of the default profile in the settings of seccomp.
const RuntimeDefault = "RuntimeDefault"

// noDefaults are those of a handler as berth ships.
func noDefaults() Defaults {
	return Defaults{
		Capabilities:   []string{},
		Sysctls:        []string{},
		Env:            []string{},
		Annotations:    []string{},
		Ulimits:        []string{},
		Mounts:         []string{},
		Devices:        []string{},
		AllowedDevices: []string{},
		HooksDirs:      []string{},
	}
}

// Ulimit is a resource limit of a process, by the name that the OCI has for it.
type Ulimit struct {
	Type       string
	Soft, Hard uint64
}

// ulimits are the names of setrlimit(2).
var ulimits = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack",
}

// ParseUlimit reads one of ulimits.
func ParseUlimit(s string) (Ulimit, error) {
	name, value, _ := strings.Cut(s, "=")
	soft, hard, two := strings.Cut(value, ":")
	if !two {
		hard = soft
	}
	u := Ulimit{Type: "RLIMIT_" + strings.ToUpper(name)}
	for _, p := range []struct {
		to   *uint64
		text string
	}{{&u.Soft, soft}, {&u.Hard, hard}} {
		n, err := strconv.ParseUint(p.text, 10, 64)
		if p.text == "unlimited" || p.text == "-1" {
			n, err = ^uint64(0), nil
		}
		if err != nil || !slices.Contains(ulimits, strings.ToLower(name)) {
			return u, fmt.Errorf("%q is not a resource limit, such as nofile=1024:524288", s)
		}
		*p.to = n
	}
	if u.Soft > u.Hard {
		return u, fmt.Errorf("%q has a soft limit above the hard one", s)
	}
	return u, nil
}

// Bind is a path of the host in a container, with its options.
type Bind struct{ Host, Container, Options string }

// ParseBind reads HOST, HOST:CONTAINER or HOST:CONTAINER:OPTIONS.
func ParseBind(s string) (Bind, error) {
	parts := strings.Split(s, ":")
	b := Bind{Host: parts[0], Container: parts[0]}
	if len(parts) > 1 {
		b.Container = parts[1]
	}
	if len(parts) > 2 {
		b.Options = parts[2]
	}
	for _, p := range []string{b.Host, b.Container} {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || len(parts) > 3 {
			return b, fmt.Errorf("%q is not HOST, HOST:CONTAINER or HOST:CONTAINER:OPTIONS with two clean absolute paths", s)
		}
	}
	return b, nil
}

// ParseDevice reads one of devices. Options are its permissions.
func ParseDevice(s string) (Bind, error) {
	b, err := ParseBind(s)
	switch {
	case err != nil:
		return b, err
	case b.Options == "":
		b.Options = "rwm"
	case strings.Trim(b.Options, "rwm") != "":
		return b, fmt.Errorf("%q has permissions that are not some of r, w and m", s)
	}
	return b, nil
}

// ParseMount reads one of mounts.
func ParseMount(s string) (Bind, error) {
	b, err := ParseBind(s)
	if err == nil && (strings.Count(s, ":") == 0 || !slices.Contains([]string{"", "rw", "ro"}, b.Options)) {
		err = fmt.Errorf("%q is not HOST:CONTAINER or HOST:CONTAINER:ro", s)
	}
	return b, err
}

// Zone returns the file of the time zone; "" for none.
func (d Defaults) Zone() string {
	switch d.Timezone {
	case "":
		return ""
	case "Local", "local":
		return "/etc/localtime"
	}
	return filepath.Join("/usr/share/zoneinfo", d.Timezone)
}

// check reports settings that cannot work. prefix begins the names of the settings.
func (d Defaults) check(prefix string, bad func(key, format string, args ...any)) {
	each := func(key string, list []string, check func(string) error) {
		for i, s := range list {
			if err := check(s); err != nil {
				bad(fmt.Sprintf("%s%s[%d]", prefix, key, i), "%v", err)
			}
		}
	}
	pair := func(s string) error {
		if name, _, ok := strings.Cut(s, "="); !ok || name == "" || strings.Contains(s, "\x00") {
			return fmt.Errorf("%q is not NAME=VALUE", s)
		}
		return nil
	}
	absolute := func(s string) error {
		if !filepath.IsAbs(s) {
			return fmt.Errorf("%q is not an absolute path", s)
		}
		return nil
	}
	each("env", d.Env, pair)
	each("annotations", d.Annotations, pair)
	each("sysctls", d.Sysctls, pair)
	each("ulimits", d.Ulimits, func(s string) error { _, err := ParseUlimit(s); return err })
	each("mounts", d.Mounts, func(s string) error { _, err := ParseMount(s); return err })
	each("devices", d.Devices, func(s string) error { _, err := ParseDevice(s); return err })
	each("allowed_devices", d.AllowedDevices, absolute)
	each("hooks_dirs", d.HooksDirs, absolute)
	for key, v := range map[string]string{"seccomp": d.Seccomp, "seccomp_privileged": d.SeccompPrivileged, "seccomp_runtime_default": d.SeccompRuntime} {
		if v != "" && !filepath.IsAbs(v) && (v != RuntimeDefault || key == "seccomp_runtime_default") {
			bad(prefix+key, "%q is not the absolute path of a profile", v)
		}
	}
	if !filepath.IsLocal(d.Timezone) && d.Timezone != "" {
		bad(prefix+"timezone", "%q is not Local or the name of a zone, such as Europe/Berlin", d.Timezone)
	}
	if d.PidsLimit < 0 {
		bad(prefix+"pids_limit", "%d is less than 0", d.PidsLimit)
	}
	if !slices.Contains([]string{"", CgroupsAnnotated, CgroupsUserns, CgroupsAlways}, d.CgroupWritable) {
		bad(prefix+"cgroup_writable", "%q is not %s, %s or %s", d.CgroupWritable, CgroupsAnnotated, CgroupsUserns, CgroupsAlways)
	}
}
