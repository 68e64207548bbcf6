// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"path/filepath"
	"strings"
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
		f := features{host: spec.Host{RecursiveReadOnly: kernel}}
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
