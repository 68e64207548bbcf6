// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/heart/pod"
)

func TestVersionsOfRuncWithKnownHoles(t *testing.T) {
	for out, want := range map[string]bool{
		"runc version 1.0.0-rc93\nspec: 1.0.2":  true,
		"runc version 1.1.15\ncommit: x":        true,
		"runc version 1.2.7":                    true,
		"runc version 1.2.8":                    false,
		"runc version 1.3.0-rc.1":               true,
		"runc version 1.3.2+dev":                true,
		"runc version 1.3.3":                    false,
		"runc version 1.4.0-rc.2":               true,
		"runc version 1.4.0-rc.3\nlibseccomp: ": false,
		"runc version 1.4.0":                    false,
		"runc version 1.5.0-rc.1":               false,
		"runc version 2.0.0":                    false,
	} {
		v, ok := parseRunc([]byte(out))
		if !ok || v.hasEscapes() != want {
			t.Errorf("%q is %v: %v", out, v, v.hasEscapes())
		}
	}
	for _, out := range []string{"crun version 1.14", "", "youki version 0.5.0"} {
		if v, ok := parseRunc([]byte(out)); ok {
			t.Errorf("%q is runc %v", out, v)
		}
	}
}

// An operator who names a runc of his own learns that it has holes which the one of berth's has not.
func TestAnOldRuncIsNamed(t *testing.T) {
	dir := t.TempDir()
	runtime := func(name, says string) pod.Handler {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo '"+says+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return pod.Handler{Options: pod.OptionsRunc, Binary: path}
	}
	p := New(Config{
		Handlers: map[string]pod.Handler{
			"old":  runtime("old", "runc version 1.1.12"),
			"new":  runtime("new", "runc version 1.3.3"),
			"crun": runtime("crun", "crun version 1.14"),
			"vm":   {Options: pod.OptionsGeneric, Binary: "/nonexistent"},
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err := p.RunVersions(t.Context()); err != nil {
		t.Error(err)
	}
	got := p.Warnings()
	if len(got) != 1 || !strings.Contains(got[0], "handler old") || !strings.Contains(got[0], filepath.Join(dir, "old")) || !strings.Contains(got[0], "1.1.12") {
		t.Errorf("%q", got)
	}
}

// krun runs each container in a virtual machine. A probe that joined the process of such a machine would
// run a program of the image outside of it, on the host.
func TestWhichOCIRuntimeAHandlerHas(t *testing.T) {
	dir := t.TempDir()
	says := func(name, annotations string) pod.Handler {
		t.Helper()
		path := filepath.Join(dir, name)
		script := "#!/bin/sh\n[ \"$1\" = features ] && echo '{\"annotations\":{" + annotations + "}}'\n"
		if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		return pod.Handler{Options: pod.OptionsRunc, HostProcess: true, Binary: path}
	}
	const asCrun = `"run.oci.crun.version":"1.21","io.github.seccomp.libseccomp.version":"2.6.0"`
	sandboxer := says("other", `"org.opencontainers.runc.version":"1.5.2"`)
	sandboxer.Sandboxer = "shim"
	handlers := map[string]pod.Handler{
		"runc":      says("runc", `"org.opencontainers.runc.version":"1.5.2","io.github.seccomp.libseccomp.version":"2.5.4"`),
		"crun":      says("crun", asCrun),
		"krun":      says("krun", asCrun),
		"crun-wasm": says("crun-wasm", asCrun),
		"youki":     says("youki", `"x":"y"`),
		"sandboxer": sandboxer,
	}
	p := New(Config{Handlers: handlers, Logger: slog.New(slog.DiscardHandler)})
	if name, version, _ := p.OCI("runc"); name != "" || version != "" {
		t.Errorf("before it has said so, it is %s %s", name, version)
	}
	for name, want := range map[string][3]string{
		"runc": {"runc", "1.5.2", "2.5.4"},
		"crun": {"crun", "1.21", "2.6.0"},
		"krun": {}, "crun-wasm": {}, "youki": {}, "sandboxer": {}, "none": {},
	} {
		if h, ok := handlers[name]; ok {
			if _, err := p.features.of(t.Context(), ociRuntime(h)); err != nil {
				t.Fatal(err)
			}
		}
		var got [3]string
		if got[0], got[1], got[2] = p.OCI(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
