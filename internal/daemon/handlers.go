// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

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
