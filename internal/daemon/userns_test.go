// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/pod"
)

// What is advertised is what the runtime, the snapshotter and the kernel can do together, and an
// answer that could not be had is asked for again.
func TestUserNamespacesAreThereWhereEverythingMapsOwners(t *testing.T) {
	dir := t.TempDir()
	runc := func(name, says string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+says+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	can := runc("can", `echo '{"linux": {"namespaces": ["user"], "mountExtensions": {"idmap": {"enabled": true}}}}'`)
	handler := func(binary string) pod.Handler {
		return pod.Handler{HostProcess: true, Options: pod.OptionsRunc, Binary: binary}
	}
	native := handler(can)
	native.Snapshotter = "native"
	vm := pod.Handler{Options: pod.OptionsGeneric}
	var down error
	u := newUserNamespaces(map[string]pod.Handler{
		"can":    handler(can),
		"old":    handler(runc("old", `echo '{"linux": {"namespaces": ["user"]}}'`)),
		"none":   handler(runc("none", "echo no such command >&2; exit 1")),
		"native": native,
		"vm":     vm,
	}, "overlayfs", &ociRuntimes{}, func(_ context.Context, snapshotter string) (bool, error) { return snapshotter == "overlayfs", down })
	down = errors.New("containerd is away")
	if err := u.check(t.Context(), "can"); !errors.Is(err, down) || u.known("can") {
		t.Error(err)
	}
	down = nil
	if err := u.check(t.Context(), "can"); err != nil || !u.known("can") {
		t.Error(err)
	}
	for name, why := range map[string]string{"old": "mapped owners", "native": "snapshotter native", "vm": "runc's shim"} {
		if err := u.check(t.Context(), name); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), why) || u.known(name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := u.check(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), "no such command") || u.known("none") {
		t.Error(err)
	}
}
