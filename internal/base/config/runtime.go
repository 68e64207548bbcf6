// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"

	"github.com/distribution/reference"
)

// IsRunc reports whether a handler's shim is that of runc; crun and youki use it, too.
func (r Runtime) IsRunc() bool {
	return r.Type == "io.containerd.runc.v2" || filepath.IsAbs(r.Type) && filepath.Base(r.Type) == "containerd-shim-runc-v2"
}

// Joins reports whether berth-exec makes the processes of ExecSync in containers of this handler.
func (r Runtime) Joins() bool {
	return r.Exec == ExecHelper || r.Exec == "" && r.IsRunc() && r.HostProcess
}

// ShimStarts reports whether the shim of this handler may start containers itself.
func (r Runtime) ShimStarts() bool {
	return r.Start == StartShim || r.Start == "" && r.IsRunc() && r.HostProcess
}

// defaultShimPods is how many pods share a shim as berth ships. Of 50 pods, 20 to a shim cost their
// shims 31 MiB, 10 cost 40, and 50 cost 22; each further pod costs 0.26 MiB, 0.51 and 0.2. More
// saves little, and a shim that fails has more pods.
const defaultShimPods = 20

// PodsOfAShim returns how many pods without a pause process may share a shim.
func (r Runtime) PodsOfAShim() int {
	if r.ShimPods == 0 && r.IsRunc() && r.HostProcess {
		return defaultShimPods
	}
	return r.ShimPods
}

// mostShimPods bounds shim_pods, and so the damage from a shim that dies or hangs.
const mostShimPods = 1000

// check reports settings of a handler that cannot work. prefix begins the names of the settings.
func (r Runtime) check(prefix string, bad func(key, format string, args ...any)) {
	switch r.Exec {
	case "", ExecOCI:
	case ExecHelper:
		if !r.IsRunc() || !r.HostProcess {
			bad(prefix+"exec", "helper is for handlers of runc's shim with host_process")
		}
	default:
		bad(prefix+"exec", "%q is not oci or helper", r.Exec)
	}
	switch r.Start {
	case "", StartOCI:
	case StartShim:
		if !r.IsRunc() || !r.HostProcess {
			bad(prefix+"start", "shim is for handlers of runc's shim with host_process")
		}
	default:
		bad(prefix+"start", "%q is not oci or shim", r.Start)
	}
	switch {
	case r.ShimPods < 0 || r.ShimPods > mostShimPods:
		bad(prefix+"shim_pods", "%d is not a number of pods from 0 to %d", r.ShimPods, mostShimPods)
	case r.ShimPods > 1 && (!r.IsRunc() || !r.HostProcess):
		bad(prefix+"shim_pods", "only berth's shim for runc serves several pods, with host_process; set it to 1")
	}
	for _, p := range []struct{ key, v string }{
		{"config_path", r.ConfigPath},
		{"base_spec", r.BaseSpec},
		{"cni_conf_dir", r.CNIConfDir},
	} {
		if p.v != "" && !filepath.IsAbs(p.v) {
			bad(prefix+p.key, "%q is not an absolute path", p.v)
		}
	}
	if r.ConfigPath != "" && r.ConfigBody != "" {
		bad(prefix+"config_body", "config_path is set, too")
	}
	if r.SandboxImage != "" {
		if _, err := reference.ParseDockerRef(r.SandboxImage); err != nil {
			bad(prefix+"sandbox_image", "%q is not the name of an image: %v", r.SandboxImage, err)
		}
		if r.Sandboxer != "" {
			bad(prefix+"sandbox_image", "it has no effect with a sandboxer, which makes the sandboxes itself")
		}
	}
	r.Defaults.check(prefix+"defaults.", bad)
	generic := r.ConfigPath != "" || r.ConfigBody != ""
	runc := r.IsRunc()
	switch {
	case runc && generic:
		bad(prefix+"config_path", "the shim of runc does not take a configuration; set binary, root and systemd_cgroup")
	case !runc && r.Binary != "":
		bad(prefix+"binary", "%s does not take it; only the shim of runc does", r.Type)
	case !runc && (r.NoPivotRoot || r.NoNewKeyring):
		bad(prefix+"no_pivot_root", "%s does not take it, nor no_new_keyring; only the shim of runc does", r.Type)
	case !runc && r.Root != "":
		bad(prefix+"root", "%s does not take it; only the shim of runc does", r.Type)
	}
}
