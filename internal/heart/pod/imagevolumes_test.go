// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// withImages configures a container that mounts images.
func withImages(name string, images ...string) *runtimeapi.ContainerConfig {
	c := ctr(name)
	for _, img := range images {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{
			ContainerPath: "/" + img,
			Readonly:      true,
			Image:         &runtimeapi.ImageSpec{Image: img},
			ImageSubPath:  "sub",
		})
	}
	return c
}

// PROPERTIES 25: a mounted image is in the status, and is unmounted with its container.
func TestAMountedImageIsReportedAndGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		sb := b.pod("p1", "")
		before := b.Left()
		c := b.create(sb, withImages("c1", "one", "two"))
		st, err := b.ContainerStatus(t.Context(), c, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range st.GetStatus().GetMounts() {
			if m.GetImage().GetImageRef() != "sha256:1" || m.GetHostPath() != "" {
				t.Errorf("reported as %v", m)
			}
		}
		var sources []string
		for _, m := range b.Spec(c).Mounts {
			if strings.HasPrefix(m.Source, "/images/") {
				sources = append(sources, m.Source)
				for _, o := range []string{"ro", "nosuid", "nodev"} {
					if !slices.Contains(m.Options, o) {
						t.Errorf("%s is mounted with %q, without %s", m.Destination, m.Options, o)
					}
				}
			}
		}
		if want := []string{"/images/" + c + "/0/sub", "/images/" + c + "/1/sub"}; !slices.Equal(sources, want) {
			t.Errorf("mounts %q, want %q", sources, want)
		}
		if err := b.RemoveContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		b.expectLeft(before)
		// A view goes once nothing is mounted from it any more.
		did := b.Did()
		unmounted := slices.Index(did, "files-remove "+c)
		for n := range 2 {
			if at := slices.Index(did, "remove-snapshot "+pod.ViewKey(c, n)); at < unmounted {
				t.Errorf("%q", did)
			}
		}
	})
}

// PROPERTIES 4: whatever step of mounting an image a kill cuts off, the next berth gives back what
// was made, and the container is not there.
func TestNothingIsLeftOfAnImageVolumeThatAKillCutOff(t *testing.T) {
	for _, step := range []string{"view-snapshot", "prepare-snapshot", "create-sandbox", "create-container"} {
		for _, recorded := range []bool{true, false} { // false: a backup was restored
			inBubble(t, func(t *testing.T, b *bubble) {
				sb := b.pod("p1", "")
				before := b.Left()
				again := cutOff(t, b, step, recorded, func(ctx context.Context) {
					_, _ = b.CreateContainer(ctx, sb, withImages("c1", "one", "two"))
				})
				if len(again.ListContainers(nil)) != 0 {
					t.Errorf("%s: the container is there", step)
				}
				if left := b.Left(); !slices.Equal(left, before) {
					t.Errorf("%s, recorded %v: left %q, want %q", step, recorded, left, before)
				}
			})
		}
	}
}

func TestAnImageVolumeThatIsNotOnTheNodeIsNamed(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		_, err := b.CreateContainer(t.Context(), b.pod("p1", ""), withImages("c1", world.Absent))
		if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "ImageVolumeMountFailed") || !strings.Contains(err.Error(), "/absent") {
			t.Error(err)
		}
	})
}

// PROPERTIES 22: what CRI does not allow of a mount of an image is refused, by the name of the
// field, before anything is recorded.
func TestAMountOfAnImageThatCRIDoesNotAllowIsRefused(t *testing.T) {
	for field, change := range map[string]func(m *runtimeapi.Mount){
		"readonly":           func(m *runtimeapi.Mount) { m.Readonly = false },
		"host_path":          func(m *runtimeapi.Mount) { m.HostPath = "/etc" },
		"propagation":        func(m *runtimeapi.Mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL },
		"image_sub_path":     func(m *runtimeapi.Mount) { m.ImageSubPath = "../etc" },
		"image_sub_path \"/": func(m *runtimeapi.Mount) { m.ImageSubPath = "/etc" },
		"image_sub_path \"e": func(m *runtimeapi.Mount) { m.Image, m.ImageSubPath = nil, "etc" },
		"image: no image":    func(m *runtimeapi.Mount) { m.Image.Image = "" },
	} {
		inBubble(t, func(t *testing.T, b *bubble) {
			sb := b.pod("p1", "")
			commits := b.Calls("commit", "")
			c := withImages("c1", "one")
			change(c.GetMounts()[0])
			if _, err := b.CreateContainer(t.Context(), sb, c); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
			if n := b.Calls("commit", ""); n != commits {
				t.Errorf("%s: %d commits", field, n-commits)
			}
		})
	}
}

func TestAViewBelongsToItsContainer(t *testing.T) {
	if id, isView := pod.ViewedBy(pod.ViewKey("c1", 2)); id != "c1" || !isView {
		t.Error(id, isView)
	}
	if id, isView := pod.ViewedBy("c1"); id != "c1" || isView {
		t.Error(id, isView)
	}
	if pod.WithImageRefs(&state.Container{Config: &runtimeapi.ContainerConfig{}}) != nil {
		t.Error("mounts out of nothing")
	}
}
