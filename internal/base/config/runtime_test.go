// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

// PROPERTIES 45: what berth-exec does not cover, a handler of another shim or a VM, it is not asked for.
func TestBerthExecIsForContainersOfRunc(t *testing.T) {
	const runc, kata = "io.containerd.runc.v2", "io.containerd.kata.v2"
	if !Default().Runtimes["runc"].Joins() {
		t.Error("not as berth ships")
	}
	for _, tt := range []struct {
		r    Runtime
		want bool
	}{
		{Runtime{Type: runc, HostProcess: true}, true},
		{Runtime{Type: runc, HostProcess: true, Exec: ExecHelper}, true},
		{Runtime{Type: runc, HostProcess: true, Exec: ExecOCI}, false},
		{Runtime{Type: runc}, false},
		{Runtime{Type: kata, HostProcess: true}, false},
	} {
		if got := tt.r.Joins(); got != tt.want {
			t.Errorf("%+v: %t", tt.r, got)
		}
	}
}

func TestAHandlerOfAnotherShimIsChecked(t *testing.T) {
	const kata = "io.containerd.kata.v2"
	for _, tt := range []struct {
		r    Runtime
		want string // "" for nothing to complain about
	}{
		{Runtime{Type: "io.containerd.runc.v2", Binary: "/crun", Root: "/x"}, ""},
		{Runtime{Type: "/opt/containerd-shim-runc-v2", Binary: "/crun"}, ""},
		{Runtime{Type: kata, ConfigPath: "/etc/kata.toml", Snapshotter: "devmapper"}, ""},
		{Runtime{Type: "/opt/containerd-shim-runc-v2", Binary: "/crun"}, ""},
		{Runtime{Type: "io.containerd.runc.v2", HostProcess: true, Exec: "helper"}, ""},
		{Runtime{Type: "io.containerd.runc.v2", Exec: "helper"}, "runtimes.x.exec"},
		{Runtime{Type: kata, HostProcess: true, Exec: "helper"}, "runtimes.x.exec"},
		{Runtime{Type: "io.containerd.runc.v2", Exec: "yes"}, "runtimes.x.exec"},
		{Runtime{Type: "io.containerd.runc.v2", HostProcess: true, ShimPods: 10}, ""},
		{Runtime{Type: "io.containerd.runc.v2", HostProcess: true, ShimPods: -1}, "runtimes.x.shim_pods"},
		{Runtime{Type: "io.containerd.runc.v2", HostProcess: true, ShimPods: 1001}, "runtimes.x.shim_pods"},
		{Runtime{Type: kata, HostProcess: true}, ""},
		{Runtime{Type: kata, HostProcess: true, ShimPods: 2}, "runtimes.x.shim_pods"},
		{Runtime{Type: "io.containerd.runc.v2", ShimPods: 2}, "runtimes.x.shim_pods"},
		{Runtime{Type: kata, Binary: "/crun"}, "runtimes.x.binary"},
		{Runtime{Type: kata, Root: "/x"}, "runtimes.x.root"},
		{Runtime{Type: "io.containerd.runc.v2", ConfigPath: "/x"}, "runtimes.x.config_path"},
		{Runtime{Type: kata, ConfigPath: "x"}, "runtimes.x.config_path"},
		{Runtime{Type: kata, ConfigPath: "/x", ConfigBody: "y"}, "runtimes.x.config_body"},
		{Runtime{Type: kata, BaseSpec: "x"}, "runtimes.x.base_spec"},
		{Runtime{Type: kata, SandboxImage: "registry.k8s.io/pause:3.10"}, ""},
		{Runtime{Type: kata, SandboxImage: "Not An Image"}, "runtimes.x.sandbox_image"},
		{Runtime{Type: kata, SandboxImage: "pause", Sandboxer: "shim"}, "runtimes.x.sandbox_image"},
	} {
		c := Default()
		c.Runtimes["x"] = tt.r
		err := c.Check()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: got %v, want %q", tt.r, err, tt.want)
		}
	}
}

// Pods of runc's shim share shims as berth ships, and no others.
func TestPodsOfRuncsShimShareShims(t *testing.T) {
	for want, r := range map[int]Runtime{
		defaultShimPods: Default().Runtimes["runc"],
		1:               {Type: "io.containerd.runc.v2", HostProcess: true, ShimPods: 1},
		0:               {Type: "io.containerd.runc.v2"},
	} {
		if got := r.PodsOfAShim(); got != want {
			t.Errorf("%d pods of %+v share a shim, not %d", got, r, want)
		}
	}
}
