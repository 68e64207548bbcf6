// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/cri138"
)

// nodes stands for the devices of a host: /dev/fuse, which belongs to root.
func nodes(path string) ([]Device, error) {
	return []Device{{Path: path, Type: "c", Major: 10, Minor: 229, UID: 0, GID: 44}}, nil
}

// aDevice reads HOST.
func aDevice(text string) (*runtimeapi.Device, error) {
	if !strings.HasPrefix(text, "/") {
		return nil, fmt.Errorf("%q is not a device", text)
	}
	return &runtimeapi.Device{HostPath: text, ContainerPath: text, Permissions: "rw"}, nil
}

// PROPERTIES 78: a default of the handler holds where the request says nothing, and the request
// takes precedence; each default is in the specification, or refused by its name.
func TestDefaultsOfAHandlerHoldWhereTheRequestSaysNothing(t *testing.T) {
	seccompAs := func(want string) func(*testing.T, *specs.Spec) {
		return func(t *testing.T, s *specs.Spec) { expectSeccomp(t, s, nil, want) }
	}
	devices := func(want ...string) func(*testing.T, *specs.Spec) {
		return func(t *testing.T, s *specs.Spec) {
			var got []string
			for _, d := range s.Linux.Devices {
				got = append(got, fmt.Sprint(d.Path, " ", *d.UID, ":", *d.GID))
			}
			if !slices.Equal(got, want) {
				t.Errorf("devices %q, want %q", got, want)
			}
		}
	}
	privileged := func(in *Container) {
		in.Sandbox.Linux.SecurityContext.Privileged, sec(in).Privileged = true, true
	}
	asks := func(annotation, value string) func(*Container) {
		return func(in *Container) { in.Sandbox.Annotations = map[string]string{annotation: value} }
	}
	for _, tt := range []struct {
		name     string
		defaults Defaults
		edit     func(*Container) // nil: the request says nothing
		want     any              // a check of the specification, or a part of the error
	}{
		{"seccomp", Defaults{Seccomp: "RuntimeDefault"}, nil, seccompAs("RuntimeDefault")},
		{"seccomp of a file", Defaults{Seccomp: "/profiles/mine.json"}, nil, seccompAs("Localhost")},
		{"seccomp, and none is asked for", Defaults{Seccomp: "RuntimeDefault"}, func(in *Container) { sec(in).Seccomp = profileOf(unconfined, "") }, seccompAs("")},
		{"seccomp, and an older kubelet asks for none", Defaults{Seccomp: "RuntimeDefault"}, func(in *Container) { sec(in).SeccompProfilePath = "unconfined" }, seccompAs("")}, //nolint:staticcheck // older kubelets send it
		{"seccomp, privileged", Defaults{Seccomp: "RuntimeDefault"}, privileged, seccompAs("")},
		{"seccomp of a file that is not there", Defaults{Seccomp: "/profiles/absent.json"}, nil, "/profiles/absent.json"},
		{"RuntimeDefault from a file", Defaults{SeccompRuntime: "/profiles/mine.json"}, func(in *Container) { sec(in).Seccomp = profileOf(runtimeDefault, "") }, seccompAs("Localhost")},
		{"RuntimeDefault from a file, not asked for", Defaults{SeccompRuntime: "/profiles/mine.json"}, nil, seccompAs("")},
		{"seccomp of privileged containers", Defaults{SeccompPrivileged: "/profiles/mine.json"}, privileged, seccompAs("Localhost")},
		{"seccomp of privileged containers, of another", Defaults{SeccompPrivileged: "/profiles/mine.json"}, nil, seccompAs("")},
		{"AppArmor", Defaults{AppArmor: "own"}, nil, func(t *testing.T, s *specs.Spec) {
			if s.Process.ApparmorProfile != "own" {
				t.Error(s.Process.ApparmorProfile)
			}
		}},
		{"AppArmor that is not loaded", Defaults{AppArmor: "absent"}, nil, "profile absent is not loaded"},
		{"capabilities", Defaults{Capabilities: []string{"chown", "CAP_KILL"}}, func(in *Container) {
			sec(in).Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"KILL"}, AddCapabilities: []string{"NET_RAW"}}
		}, func(t *testing.T, s *specs.Spec) {
			if got := s.Process.Capabilities.Bounding; !slices.Equal(got, []string{"CAP_CHOWN", "CAP_NET_RAW"}) {
				t.Error(got)
			}
		}},
		{"variables", Defaults{Env: []string{"A=default", "B=default", "C=default"}}, func(in *Container) {
			in.Image.Env, in.Config.Envs = []string{"B=image"}, []*runtimeapi.KeyValue{{Key: "C", Value: []byte("pod")}}
		}, func(t *testing.T, s *specs.Spec) {
			for _, e := range []string{"A=default", "B=image", "C=pod"} {
				if !slices.Contains(s.Process.Env, e) {
					t.Errorf("no %s in %q", e, s.Process.Env)
				}
			}
		}},
		{"annotations", Defaults{Annotations: map[string]string{"a": "default", "io.kubernetes.cri.sandbox-id": "x"}}, nil, func(t *testing.T, s *specs.Spec) {
			if s.Annotations["a"] != "default" || s.Annotations["io.kubernetes.cri.sandbox-id"] != "p1" {
				t.Error(s.Annotations)
			}
		}},
		{"limits", Defaults{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 7, Hard: 8}}, PidsLimit: 9}, nil, func(t *testing.T, s *specs.Spec) {
			n := 0
			for _, l := range s.Process.Rlimits {
				if l.Type == "RLIMIT_NOFILE" && l.Soft == 7 && l.Hard == 8 {
					n++
				}
			}
			if n != 1 || len(s.Process.Rlimits) != len(baseRlimits) || *s.Linux.Resources.Pids.Limit != 9 {
				t.Errorf("%v %v", s.Process.Rlimits, s.Linux.Resources.Pids)
			}
		}},
		{"a read-only root", Defaults{ReadonlyRootfs: true}, nil, func(t *testing.T, s *specs.Spec) {
			if !s.Root.Readonly {
				t.Error("it can be written to")
			}
		}},
		{"a read-only root, privileged", Defaults{ReadonlyRootfs: true}, privileged, func(t *testing.T, s *specs.Spec) {
			if s.Root.Readonly {
				t.Error("it is read-only")
			}
		}},
		{"mounts", Defaults{Mounts: []*runtimeapi.Mount{
			{HostPath: "/usr/share/zoneinfo/UTC", ContainerPath: "/etc/localtime", Readonly: true},
			{HostPath: "/default", ContainerPath: "/both"},
		}}, func(in *Container) {
			in.Config.Mounts = []*runtimeapi.Mount{{HostPath: "/pod", ContainerPath: "/both/"}}
		}, func(t *testing.T, s *specs.Spec) {
			of := map[string]specs.Mount{}
			for _, m := range s.Mounts {
				of[m.Destination] = m
			}
			if m := of["/etc/localtime"]; !slices.Contains(m.Options, "ro") || of["/both"].Source != "/pod" {
				t.Error(s.Mounts)
			}
		}},
		{"devices", Defaults{Devices: []string{"/dev/fuse"}}, nil, devices("/dev/fuse 0:44")},
		{"devices for their user", Defaults{Devices: []string{"/dev/fuse"}, DeviceOwnership: true}, func(in *Container) {
			sec(in).RunAsUser, sec(in).RunAsGroup = &runtimeapi.Int64Value{Value: 107}, &runtimeapi.Int64Value{Value: 108}
		}, devices("/dev/fuse 107:108")},
		{"devices for root", Defaults{Devices: []string{"/dev/fuse"}, DeviceOwnership: true}, nil, devices("/dev/fuse 0:44")},
		{"a device by annotation", Defaults{AllowedDevices: []string{"/dev/fuse"}}, asks("io.kubernetes.cri-o.Devices", "/dev/fuse"), devices("/dev/fuse 0:44")},
		{"a device by annotation, twice", Defaults{Devices: []string{"/dev/fuse"}, AllowedDevices: []string{"/dev/fuse"}}, asks("devices.crio.io", "/dev/fuse, /dev/fuse"), devices("/dev/fuse 0:44")},
		{"a device that is not allowed", Defaults{AllowedDevices: []string{"/dev/fuse"}}, asks("devices.crio.io", "/dev/fuse,/dev/sda"), "annotation devices.crio.io: /dev/sda is not among the allowed_devices"},
		{"a device that is not one", Defaults{AllowedDevices: []string{"/dev/fuse"}}, asks("devices.crio.io", "fuse"), "annotation devices.crio.io"},
		{"a device by annotation where none is allowed", Defaults{}, asks("devices.crio.io", "/dev/sda"), devices()},
		{"all devices, privileged without those of the host", Defaults{AllDevices: true}, func(in *Container) {
			privileged(in)
			in.PrivilegedWithoutHostDevices = true
		}, func(t *testing.T, s *specs.Spec) {
			if r := s.Linux.Resources.Devices; len(r) != 1 || !r[0].Allow || len(s.Linux.Devices) != 0 {
				t.Errorf("%+v", r)
			}
		}},
		{"all devices, of another container", Defaults{AllDevices: true}, nil, func(t *testing.T, s *specs.Spec) {
			if r := s.Linux.Resources.Devices; len(r) != 1 || r[0].Allow {
				t.Errorf("%+v", r)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, h := input(), host()
			h.AppArmorDefault, h.AppArmorLoaded = "berth-default", func(name string) (bool, error) { return name == "own", nil }
			in.Profiles.Local, in.Devices, in.Defaults = loads, nodes, tt.defaults
			in.Defaults.Device = aDevice
			if tt.edit != nil {
				tt.edit(&in)
			}
			before := in.Config.String()
			s, _, err := ForContainer(h, in)
			if part, refused := tt.want.(string); refused {
				expectRefusal(t, err, part)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tt.want.(func(*testing.T, *specs.Spec))(t, s)
			if in.Config.String() != before {
				t.Error("the request, which is on record, has changed")
			}
		})
	}
}

// PROPERTIES 78: control groups are writable by default where the kernel keeps a container in its
// own; where it does not they stay read-only, and the timeline says so to a pod that asked.
func TestControlGroupsAreWritableByDefaultWhereThatIsSafe(t *testing.T) {
	lacks := errors.New("mounted without nsdelegate")
	for _, tt := range []struct {
		groups           OwnGroups
		userns, annotate bool
		v2               bool
		delegated        error
		mount            cri138.CgroupMountMode
		rw, degraded     bool
	}{
		{groups: "", v2: true, annotate: true, userns: true},
		{groups: "annotation", v2: true},
		{groups: "annotation", v2: true, annotate: true, rw: true},
		{groups: "annotation", v2: true, annotate: true, delegated: lacks, degraded: true},
		{groups: "userns", v2: true},
		{groups: "userns", v2: true, userns: true, rw: true},
		{groups: "userns", v2: true, userns: true, delegated: lacks},
		{groups: "userns", v2: true, annotate: true, rw: true},
		{groups: "always", v2: true, rw: true},
		{groups: "always", delegated: lacks, degraded: true},
		{groups: "always", v2: true, mount: cri138.CgroupMountMode_CGROUP_MOUNT_MODE_READ_ONLY},
	} {
		in, h := input(), host()
		h.CgroupV2, h.GroupsDelegated, in.HostProcess = tt.v2, func() error { return tt.delegated }, true
		in.Defaults.Groups = tt.groups
		if tt.annotate {
			in.Sandbox.Annotations = map[string]string{"io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw": "true"}
		}
		if tt.userns {
			ids := []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
			in.Sandbox.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Uids: ids, Gids: ids}}
			sec(&in).NamespaceOptions = in.Sandbox.Linux.SecurityContext.NamespaceOptions
		}
		cri138.Set(sec(&in), &cri138.LinuxContainerSecurityContext{CgroupMountMode: tt.mount})
		s, degraded, err := ForContainer(h, in)
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == cgroupRoot })
		noted := slices.ContainsFunc(degraded, func(d Degraded) bool { return strings.Contains(d.What, "cgroup_writable") })
		if rw := slices.Contains(s.Mounts[i].Options, "rw"); rw != tt.rw || noted != tt.degraded || OwnsGroup(h, in) != tt.rw {
			t.Errorf("%+v: rw %t, degraded %v, owned %t", tt, rw, degraded, OwnsGroup(h, in))
		}
	}
}

// A class that annotations name is in the specification, and one that cannot be had is refused.
func TestAContainerIsInItsClasses(t *testing.T) {
	in, h := input(), host()
	weight := uint16(7)
	h.Classes = func(name string, _, pod map[string]string) (Classes, error) {
		if pod["bad"] != "" {
			return Classes{}, errors.New("no such class")
		}
		return Classes{RDT: "gold-" + name, BlockIO: &specs.LinuxBlockIO{Weight: &weight}}, nil
	}
	s, _, err := ForContainer(h, in)
	if err != nil || s.Linux.IntelRdt.ClosID != "gold-c" || *s.Linux.Resources.BlockIO.Weight != 7 {
		t.Error(s, err)
	}
	in.Sandbox.Annotations = map[string]string{"bad": "x"}
	_, _, err = ForContainer(h, in)
	expectRefusal(t, err, "no such class")
}

// A default sysctl is one of the pod's own namespaces, and the pod's own value goes first, in
// either spelling.
func TestDefaultSysctlsAreThoseOfThePodsNamespaces(t *testing.T) {
	d := Defaults{Sysctls: map[string]string{"net.core.somaxconn": "7", "kernel.shmmax": "8", "net.ipv4.ip_unprivileged_port_start": "9"}}
	for _, tt := range []struct {
		ns   *runtimeapi.NamespaceOption
		want string
	}{
		{&runtimeapi.NamespaceOption{}, "map[kernel.shmmax:8 net.core.somaxconn:7 net/ipv4/ip_unprivileged_port_start:1]"},
		{&runtimeapi.NamespaceOption{Ipc: onNode}, "map[net.core.somaxconn:7 net/ipv4/ip_unprivileged_port_start:1]"},
		{&runtimeapi.NamespaceOption{Network: onNode}, "map[kernel.shmmax:8 net/ipv4/ip_unprivileged_port_start:1]"},
	} {
		cfg := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			Sysctls:         map[string]string{"net/ipv4/ip_unprivileged_port_start": "1"},
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: tt.ns},
		}}
		if got := fmt.Sprint(d.Pod(cfg).Linux.Sysctls); got != tt.want || len(cfg.Linux.Sysctls) != 1 {
			t.Errorf("%v: %s, want %s", tt.ns, got, tt.want)
		}
	}
}
