// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PROPERTIES 78: a hook is for the containers that its file chooses, and for no others.
func TestOCIHooksChooseTheirContainers(t *testing.T) {
	usual, own := t.TempDir(), t.TempDir()
	hook := func(dir, name, when, stages string) {
		t.Helper()
		text := `{"version": "1.0.0", "hook": {"path": "/bin/` + name + `", "args": ["x"]}, "when": ` + when + `, "stages": ` + stages + `}`
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hook(usual, "b-always", `{"always": true}`, `["prestart", "poststop"]`)
	hook(usual, "a-command", `{"commands": [".*/x$"]}`, `["createRuntime"]`)
	hook(usual, "c-annotation", `{"annotations": {"^gpu\\.": "^(yes|true)$"}}`, `["createRuntime"]`)
	hook(usual, "d-both", `{"annotations": {"gpu.on": "yes"}, "hasBindMounts": true}`, `["createRuntime"]`)
	hook(usual, "e-nothing", `{}`, `["createRuntime"]`)
	hook(usual, "f-replaced", `{"always": true}`, `["createRuntime"]`)
	hook(own, "f-replaced", `{"always": false}`, `["createRuntime"]`)
	hook(usual, "ignored", `{"always": true}`, `["createRuntime"]`)
	if err := os.Rename(usual+"/ignored.json", usual+"/ignored"); err != nil {
		t.Fatal(err)
	}
	hooks, err := LoadHooks([]string{usual, "/does/not/exist", own})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		command, annotation string
		mount               bool
		want                string
	}{
		{"/bin/x", "", false, "a-command"},
		{"/bin/y", "yes", false, "c-annotation"},
		{"/bin/y", "no", true, ""},
		{"/bin/y", "yes", true, "c-annotation d-both"},
	} {
		in := input()
		in.Hooks = hooks
		in.Config.Command = []string{tt.command}
		in.Sandbox.Annotations = map[string]string{"gpu.on": tt.annotation}
		if tt.mount {
			in.Config.Mounts = []*runtimeapi.Mount{{HostPath: "/a", ContainerPath: "/a"}}
		}
		s := make1(t, in)
		var got []string
		for _, h := range s.Hooks.CreateRuntime {
			got = append(got, filepath.Base(h.Path))
		}
		if strings.Join(got, " ") != tt.want || len(s.Hooks.Prestart) != 1 || len(s.Hooks.Poststop) != 1 { //nolint:staticcheck // files name it
			t.Errorf("%+v: %q, %+v", tt, got, s.Hooks)
		}
	}
	for _, text := range []string{
		`x`, `{}`, `{"version": "2", "hook": {"path": "/x"}, "when": {"always": true}, "stages": ["poststop"]}`,
		`{"version": "1.0.0", "hook": {"path": "x"}, "when": {"always": true}, "stages": ["poststop"]}`,
		`{"version": "1.0.0", "hook": {"path": "/x"}, "when": {"allways": true}, "stages": ["poststop"]}`,
		`{"version": "1.0.0", "hook": {"path": "/x"}, "when": {"always": true}, "stages": ["later"]}`,
		`{"version": "1.0.0", "hook": {"path": "/x"}, "when": {"commands": ["("]}, "stages": ["poststop"]}`,
		strings.Repeat(" ", maxHook+1),
	} {
		if err := os.WriteFile(own+"/bad.json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadHooks([]string{own}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), own+"/bad.json") {
			t.Errorf("%.80s: %v", text, err)
		}
	}
}

// A file of a hook that can be read can be matched against any container.
func FuzzHook(f *testing.F) {
	f.Add([]byte(`{"version": "1.0.0", "hook": {"path": "/x"}, "when": {"annotations": {"a": "b"}, "commands": ["x"]}, "stages": ["prestart"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHook(b)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Error(err)
			}
			return
		}
		in := input()
		in.Hooks = []Hook{h}
		_ = make1(t, in) // it ends
	})
}
