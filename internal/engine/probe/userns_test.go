// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/heart/pod"
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
	p := New(Config{
		Handlers: map[string]pod.Handler{
			"can":    handler(can),
			"old":    handler(runc("old", `echo '{"linux": {"namespaces": ["user"]}}'`)),
			"none":   handler(runc("none", "echo no such command >&2; exit 1")),
			"native": native,
			"vm":     vm,
		},
		Snapshotter: "overlayfs",
		MapsOwners:  func(_ context.Context, snapshotter string) (bool, error) { return snapshotter == "overlayfs", down },
		Logger:      slog.New(slog.DiscardHandler),
	})
	known := func(name string) bool { return p.Features(name).GetUserNamespaces() }
	down = errors.New("containerd is away")
	if err := p.UserNamespaces(t.Context(), "can"); !errors.Is(err, down) || known("can") {
		t.Error(err)
	}
	down = nil
	if err := p.UserNamespaces(t.Context(), "can"); err != nil || !known("can") {
		t.Error(err)
	}
	for name, why := range map[string]string{"old": "mapped owners", "native": "snapshotter native", "vm": "runc's shim"} {
		if err := p.UserNamespaces(t.Context(), name); !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), why) || known(name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := p.UserNamespaces(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), "no such command") || known("none") {
		t.Error(err)
	}
}
