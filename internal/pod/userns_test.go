// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mappedConfig is a pod in a user namespace of its own.
func mappedConfig(name string) *runtimeapi.PodSandboxConfig {
	cfg := config(name)
	cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{
		Uids: []*runtimeapi.IDMapping{{HostId: 1000, Length: 500}},
		Gids: []*runtimeapi.IDMapping{{HostId: 2000, Length: 600}},
	}
	return cfg
}

// PROPERTIES 22: a pod that asks for a user namespace does not run without one, and nothing is
// recorded of it.
func TestAUserNamespaceThatItsHandlerCannotMakeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		_, err := b.RunPodSandbox(t.Context(), mappedConfig("p1"), "")
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "userns_options") {
			t.Error(err)
		}
		why := errors.New("runc is too old")
		b.userns.can = func(_ context.Context, handler string) error {
			if handler != "runc" {
				t.Errorf("asked for %s", handler)
			}
			return why
		}
		if _, err := b.RunPodSandbox(t.Context(), mappedConfig("p1"), ""); !errors.Is(err, why) {
			t.Error(err)
		}
		if n := w.count("commit"); n != 0 {
			t.Errorf("%d commits", n)
		}
	})
}

// PROPERTIES 26: the network namespace, the files and the snapshots of a pod have its owners.
func TestAUserNamespaceOwnsTheNetworkAndTheFilesOfItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		b.userns.can = func(context.Context, string) error { return nil }
		sb, err := b.RunPodSandbox(t.Context(), mappedConfig("p1"), "")
		if err != nil {
			t.Fatal(err)
		}
		c := withImages("c1", "one")
		c.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: mappedConfig("p1").GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}}
		if _, err := b.CreateContainer(t.Context(), sb, c); err != nil {
			t.Fatal(err)
		}
		w.set(func() {
			if w.owned != 1 || w.mapped != 2 {
				t.Errorf("%d network namespaces, %d snapshots have the owners of the pod", w.owned, w.mapped)
			}
		})
	})
}
