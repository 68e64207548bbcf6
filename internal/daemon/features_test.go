// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth/internal/pod"
	"berth/internal/spec"
)

// Recursive read-only mounts were given and not advertised, so that the kubelet refused pods that
// ask for them. PROPERTIES 22.
func TestFeaturesAreAdvertisedWhereTheRuntimeAndTheKernelHaveThem(t *testing.T) {
	dir := t.TempDir()
	program := func(name, script string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	handlers := map[string]pod.Handler{
		"runc":   {Type: runcType, Binary: program("runc", `[ "$1" = features ] && echo '{"mountOptions":["ro","rro"]}'`)},
		"old":    {Type: runcType, Binary: program("old", `echo '{"mountOptions":["ro"]}'`)},
		"broken": {Type: runcType, Binary: program("broken", "echo no such command >&2; exit 3")},
		"words":  {Type: runcType, Binary: program("words", "echo usage")},
		"absent": {Type: runcType, Binary: filepath.Join(dir, "absent")},
		"vm":     {Type: "io.containerd.kata.v2", Binary: program("vm", "exit 1")},
	}
	for _, kernel := range []bool{true, false} {
		f := features{host: spec.Host{RecursiveReadOnly: kernel}, runtimes: &ociRuntimes{}}
		if f.of("runc").GetRecursiveReadOnlyMounts() {
			t.Error("advertised before the runtime was asked")
		}
		failed := map[string]string{}
		f.probe(t.Context(), handlers, func(handler string, err error) { failed[handler] = err.Error() })
		for name := range handlers {
			if got, want := f.of(name).GetRecursiveReadOnlyMounts(), kernel && name == "runc"; got != want {
				t.Errorf("kernel %v, handler %s: recursive read-only mounts %v, want %v", kernel, name, got, want)
			}
		}
		if len(failed) != 3 || !strings.Contains(failed["broken"], "no such command") {
			t.Errorf("reported: %q", failed)
		}
	}
}

// The features and the user namespaces of each handler were two questions to the same OCI runtime.
func TestAnOCIRuntimeIsAskedOnce(t *testing.T) {
	dir := t.TempDir()
	asked, can := filepath.Join(dir, "asked"), filepath.Join(dir, "can")
	binary := filepath.Join(dir, "runc")
	script := "#!/bin/sh\necho x >> " + asked + "\n[ -e " + can + " ] || exit 1\n" +
		`echo '{"mountOptions":["rro"],"linux":{"namespaces":["user"],"mountExtensions":{"idmap":{"enabled":true}}}}'` + "\n"
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	times := func() int {
		b, _ := os.ReadFile(asked)
		return len(b) / 2
	}
	h := pod.Handler{Type: runcType, HostProcess: true, Options: pod.OptionsRunc, Binary: binary}
	handlers := map[string]pod.Handler{"a": h, "b": h}
	runtimes := &ociRuntimes{}
	if _, err := runtimes.features(t.Context(), h); err == nil || times() != 1 {
		t.Errorf("a runtime that fails: %v after %d questions", err, times())
	}
	if err := os.WriteFile(can, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f := features{host: spec.Host{RecursiveReadOnly: true}, runtimes: runtimes}
	u := newUserNamespaces(handlers, "overlayfs", runtimes, func(context.Context, string) (bool, error) { return true, nil })
	var both sync.WaitGroup
	both.Go(func() {
		f.probe(t.Context(), handlers, func(handler string, err error) { t.Errorf("%s: %v", handler, err) })
	})
	both.Go(func() {
		for name := range handlers {
			if err := u.check(t.Context(), name); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	both.Wait()
	if times() != 2 || !f.of("b").GetRecursiveReadOnlyMounts() || !u.known("a") {
		t.Errorf("it was asked %d times, and once more after it had failed is enough", times())
	}
}
