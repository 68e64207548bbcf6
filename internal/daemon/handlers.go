// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/config"
	"berth/internal/heart/pod"
	"berth/internal/host/spec"
	"berth/internal/images/image"
)

// makeHandlers completes the configured handlers with the programs that berth brings along.
func (b base) makeHandlers() (map[string]pod.Handler, error) {
	out := map[string]pod.Handler{}
	for name, r := range b.cfg.Runtimes {
		h := pod.Handler{
			Name:                         name,
			Type:                         r.Type,
			Binary:                       r.Binary,
			Root:                         r.Root,
			SystemdCgroup:                r.SystemdCgroup,
			Sandboxer:                    r.Sandboxer,
			HostProcess:                  r.HostProcess,
			Options:                      optionsOf(r),
			ConfigPath:                   r.ConfigPath,
			ConfigBody:                   r.ConfigBody,
			ShimPods:                     r.PodsOfAShim(),
			SandboxImage:                 r.SandboxImage,
			Snapshotter:                  r.Snapshotter,
			PrivilegedWithoutHostDevices: r.PrivilegedWithoutHostDevices,
			PodAnnotations:               r.PodAnnotations,
			ContainerAnnotations:         r.ContainerAnnotations,
			NoPivotRoot:                  r.NoPivotRoot,
			NoNewKeyring:                 r.NoNewKeyring,
			Defaults:                     defaultsOf(r.Defaults),
		}
		if r.BaseSpec != "" {
			loaded, err := spec.LoadBase(r.BaseSpec)
			if err != nil {
				return nil, fmt.Errorf("runtimes.%s.base_spec: %w", name, err)
			}
			h.BaseSpec = loaded
		}
		if b.embeds() && r.IsRunc() {
			if h.Binary == "" {
				h.Binary = filepath.Join(b.libexec, "runc")
			}
			if h.Root == "" {
				h.Root = filepath.Join(b.cfg.State, "runc")
			}
		}
		if logger := filepath.Join(b.libexec, "berth-logger"); r.IsRunc() && b.cfg.Tricks.KeepOutput {
			if _, err := os.Stat(logger); err == nil {
				h.Logger = logger
			} else {
				b.log.Warn("berth-logger is not installed: output that containers write while berth is away can be lost", "err", err)
			}
		}
		out[name] = h
	}
	return out, nil
}

// defaultsOf turns the defaults of a handler, which were checked, into those of specifications.
func defaultsOf(d config.Defaults) spec.Defaults {
	pairs := func(list []string) map[string]string {
		m := map[string]string{}
		for _, s := range list {
			name, value, _ := strings.Cut(s, "=")
			m[name] = value
		}
		return m
	}
	out := spec.Defaults{
		Seccomp:            d.Seccomp,
		SeccompRuntime:     d.SeccompRuntime,
		SeccompPrivileged:  d.SeccompPrivileged,
		AppArmor:           d.AppArmor,
		Capabilities:       d.Capabilities,
		Sysctls:            pairs(d.Sysctls),
		Env:                d.Env,
		Annotations:        pairs(d.Annotations),
		PidsLimit:          d.PidsLimit,
		ReadonlyRootfs:     d.ReadonlyRootfs,
		IgnoreImageVolumes: d.IgnoreImageVolumes,
		Devices:            d.Devices,
		AllowedDevices:     d.AllowedDevices,
		DeviceOwnership:    d.DeviceOwnership,
		AllDevices:         d.AllDevices,
		Groups:             spec.OwnGroups(d.CgroupWritable),
		HooksDirs:          d.HooksDirs,
		Device: func(text string) (*runtimeapi.Device, error) {
			b, err := config.ParseDevice(text)
			return &runtimeapi.Device{HostPath: b.Host, ContainerPath: b.Container, Permissions: b.Options}, err
		},
	}
	mount := func(host, container string, readonly bool) {
		out.Mounts = append(out.Mounts, &runtimeapi.Mount{HostPath: host, ContainerPath: container, Readonly: readonly})
	}
	for _, s := range d.Mounts {
		b, _ := config.ParseMount(s)
		mount(b.Host, b.Container, b.Options == "ro")
	}
	if zone := d.Zone(); zone != "" {
		mount(zone, "/etc/localtime", true)
	}
	for _, s := range d.Ulimits {
		u, _ := config.ParseUlimit(s)
		out.Rlimits = append(out.Rlimits, specs.POSIXRlimit{Type: u.Type, Soft: u.Soft, Hard: u.Hard})
	}
	return out
}

// handlerNetworks returns the directories of CNI configurations of the handlers that have one.
func handlerNetworks(runtimes map[string]config.Runtime) map[string]string {
	dirs := map[string]string{}
	for name, r := range runtimes {
		if r.CNIConfDir != "" {
			dirs[name] = r.CNIConfDir
		}
	}
	return dirs
}

// optionsOf says in which type the shim of a handler takes its options.
func optionsOf(r config.Runtime) pod.Options {
	switch {
	case r.IsRunc():
		return pod.OptionsRunc
	case r.ConfigPath != "" || r.ConfigBody != "":
		return pod.OptionsGeneric
	default:
		return pod.OptionsNone
	}
}

// handlerSnapshotters returns the snapshotters that handlers have of their own.
func handlerSnapshotters(runtimes map[string]config.Runtime) []string {
	var names []string
	for _, r := range runtimes {
		if r.Snapshotter != "" && !slices.Contains(names, r.Snapshotter) {
			names = append(names, r.Snapshotter)
		}
	}
	return names
}

// sandboxImages returns the images that the pause processes of handlers come from.
func sandboxImages(runtimes map[string]config.Runtime) []string {
	var names []string
	for _, r := range runtimes {
		if r.SandboxImage != "" {
			names = append(names, r.SandboxImage)
		}
	}
	return names
}

// credentials returns the credentials of each registry host.
func credentials(auth map[string]config.Auth) map[string]image.Credentials {
	out := map[string]image.Credentials{}
	for host, a := range auth {
		out[host] = image.Credentials{Username: a.Username, Password: string(a.Password)}
	}
	return out
}
