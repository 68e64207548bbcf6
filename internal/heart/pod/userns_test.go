// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/internal/host/pins"
	"berth/test/world"
)

// mappedConfig configures a pod in a user namespace of its own.
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
	inBubble(t, func(t *testing.T, b *bubble) {
		_, err := b.RunPodSandbox(t.Context(), mappedConfig("p1"), "")
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "userns_options") {
			t.Error(err)
		}
		b.stop()
		why := errors.New("runc is too old")
		b = start(t, b.World, state.Loaded{}, func(p *pod.Ports) {
			p.UserNamespaces = func(_ context.Context, handler string) error {
				if handler != "runc" {
					t.Errorf("asked for %s", handler)
				}
				return why
			}
		})
		if _, err := b.RunPodSandbox(t.Context(), mappedConfig("p1"), ""); !errors.Is(err, why) {
			t.Error(err)
		}
		if n := b.Calls("commit", ""); n != 0 {
			t.Errorf("%d commits", n)
		}
	})
}

// PROPERTIES 26: the network namespace, the files and the snapshots of a pod have its owners.
func TestAUserNamespaceOwnsTheNetworkAndTheFilesOfItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) {
			p.UserNamespaces = func(context.Context, string) error { return nil }
		})
		sb, err := b.RunPodSandbox(t.Context(), mappedConfig("p1"), "")
		if err != nil {
			t.Fatal(err)
		}
		cfg := withImages("c1", "one")
		cfg.Linux = &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: mappedConfig("p1").GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}}
		c := b.create(sb, cfg)
		want := pins.UserIDs{UID: 1000, GID: 2000, UIDs: 500, GIDs: 600}
		if got := b.OwnerOf("/netns/" + sb); got != want {
			t.Errorf("the network namespace belongs to %+v, want %+v", got, want)
		}
		for _, key := range []string{c, pod.ViewKey(c, 0)} {
			l := b.SnapshotLabels(key)
			if l["containerd.io/snapshot/uidmapping"] != "0:1000:500" || l["containerd.io/snapshot/gidmapping"] != "0:2000:600" {
				t.Errorf("snapshot %s has the owners %v", key, l)
			}
		}
	})
}

// PROPERTIES 26: a pod with a user namespace can be there whose handler cannot make one: it is adopted from
// containerd 1.7, whose CRI plug-in changes the owners of all files of an image, one by one. A container
// that berth made in it ran with files that belong to nobody.
func TestAContainerInAUserNamespaceThatItsHandlerCannotMakeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var why error
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) {
			p.UserNamespaces = func(context.Context, string) error { return why }
		})
		sb, err := b.RunPodSandbox(t.Context(), mappedConfig("p1"), "")
		if err != nil {
			t.Fatal(err)
		}
		plain, err := b.RunPodSandbox(t.Context(), config("p2"), "")
		if err != nil {
			t.Fatal(err)
		}
		why = errors.New("the snapshotter does not shift the owners of files")
		before := b.Calls("commit", "")
		if _, err := b.CreateContainer(t.Context(), sb, withImages("c1")); !errors.Is(err, why) || !strings.Contains(err.Error(), sb) {
			t.Error(err)
		}
		if n := b.Calls("commit", ""); n != before {
			t.Errorf("%d commits", n-before)
		}
		b.create(plain, withImages("c2"))
	})
}
