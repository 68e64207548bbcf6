// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestABaseSpecificationIsKeptExceptWhereCRIDecides(t *testing.T) {
	path := filepath.Join(t.TempDir(), "base.json")
	if err := os.WriteFile(path, []byte(`{
		"process": {"env": ["BASE=1", "BOTH=base"], "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 20}],
			"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}, "apparmorProfile": "other"},
		"hostname": "other",
		"annotations": {"base": "yes"},
		"hooks": {"createRuntime": [{"path": "/bin/hook"}]},
		"mounts": [{"destination": "/base", "type": "bind", "source": "/usr", "options": ["ro"]}, {"destination": "/dev", "type": "tmpfs", "source": "own"}],
		"linux": {"namespaces": [{"type": "user"}], "maskedPaths": ["/x"],
			"resources": {"devices": [{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw"}], "memory": {"limit": 7}}}
	}`), 0o600); err != nil {
		t.Fatal(err)
	}
	base, err := LoadBase(path)
	if err != nil {
		t.Fatal(err)
	}
	in := input()
	in.Base = base
	in.Config.Envs = []*runtimeapi.KeyValue{{Key: "BOTH", Value: []byte("cri")}}
	for range 2 { // the base does not change
		s, _, err := ForContainer(host(), in)
		if err != nil {
			t.Fatal(err)
		}
		p := s.Process
		if !slices.Contains(p.Env, "BASE=1") || !slices.Contains(p.Env, "BOTH=cri") || slices.Contains(p.Env, "BOTH=base") {
			t.Errorf("env %q", p.Env)
		}
		if len(p.Rlimits) != 1 || p.Rlimits[0].Soft != 10 || s.Annotations["base"] != "yes" || len(s.Hooks.CreateRuntime) != 1 {
			t.Errorf("%+v %v %+v", p.Rlimits, s.Annotations, s.Hooks)
		}
		of := map[string][]specs.Mount{}
		for _, m := range s.Mounts {
			of[m.Destination] = append(of[m.Destination], m)
		}
		if len(of["/base"]) != 1 || len(of["/dev"]) != 1 || of["/dev"][0].Source != "own" || len(of["/proc"]) != 1 {
			t.Errorf("mounts %v", s.Mounts)
		}
		if d := s.Linux.Resources.Devices; len(d) != 2 || d[0].Allow || *d[1].Major != 10 || s.Linux.Resources.Memory.Limit != nil {
			t.Errorf("resources %+v", s.Linux.Resources)
		}
		if s.Hostname != "" || p.ApparmorProfile == "other" || slices.Contains(p.Capabilities.Bounding, "CAP_SYS_ADMIN") ||
			slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace }) ||
			slices.Contains(s.Linux.MaskedPaths, "/x") {
			t.Errorf("the base decides what CRI does: %+v %+v", p, s.Linux)
		}
	}
}

func TestABaseSpecificationThatIsNotOneIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string][]byte{
		"word":   []byte("x"),
		"large":  make([]byte, maxBase+1),
		"binary": []byte(`{"process":{"env":["A=` + "\xff" + `"]}}`),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadBase(path); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := LoadBase(dir + "/absent"); !os.IsNotExist(err) {
		t.Error(err)
	}
}
