// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/state"
)

// withImages is a container that mounts images.
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
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		sb := b.pod("p1", "")
		before := len(w.objects)
		c, err := b.CreateContainer(t.Context(), sb, withImages("c1", "one", "two"))
		if err != nil {
			t.Fatal(err)
		}
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
		for _, m := range w.specs[c].Mounts {
			if strings.HasPrefix(m.Source, "/volumes/") {
				sources = append(sources, m.Source)
				for _, o := range []string{"ro", "nosuid", "nodev"} {
					if !slices.Contains(m.Options, o) {
						t.Errorf("%s is mounted with %q, without %s", m.Destination, m.Options, o)
					}
				}
			}
		}
		if want := []string{"/volumes/" + c + "/0/sub", "/volumes/" + c + "/1/sub"}; !slices.Equal(sources, want) {
			t.Errorf("mounts %q, want %q", sources, want)
		}
		if err := b.RemoveContainer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		w.set(func() {
			if len(w.objects) != before {
				t.Errorf("left: %v", w.objects)
			}
			// A view goes once nothing is mounted from it any more.
			unmounted := slices.Index(w.did, "delete-files "+c)
			for n := range 2 {
				if at := slices.Index(w.did, "delete-snapshot "+viewKey(c, n)); at < unmounted {
					t.Errorf("%q", w.did)
				}
			}
		})
	})
}

// PROPERTIES 4: whatever step of mounting an image a kill cuts off, the next berth gives back what
// was made, and the container is not there.
func TestNothingIsLeftOfAnImageVolumeThatAKillCutOff(t *testing.T) {
	for _, step := range []string{"create-snapshot", "create-sandbox", "create-container"} {
		for _, recorded := range []bool{true, false} { // false: a backup was restored
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				b := start(t, w)
				sb := b.pod("p1", "")
				before := len(w.objects)
				again := cutOff(t, w, b, step, recorded, func(ctx context.Context) {
					_, _ = b.CreateContainer(ctx, sb, withImages("c1", "one", "two"))
				})
				if len(again.ListContainers(nil)) != 0 {
					t.Errorf("%s: the container is there", step)
				}
				w.set(func() {
					if len(w.objects) != before {
						t.Errorf("%s, recorded %v: left %v", step, recorded, w.objects)
					}
				})
			})
		}
	}
}

func TestAnImageVolumeThatIsNotOnTheNodeIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, newWorld())
		_, err := b.CreateContainer(t.Context(), b.pod("p1", ""), withImages("c1", "absent"))
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
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			b := start(t, w)
			sb := b.pod("p1", "")
			commits := w.count("commit")
			c := withImages("c1", "one")
			change(c.GetMounts()[0])
			if _, err := b.CreateContainer(t.Context(), sb, c); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
			if n := w.count("commit"); n != commits {
				t.Errorf("%s: %d commits", field, n-commits)
			}
		})
	}
}

func TestAViewBelongsToItsContainer(t *testing.T) {
	if id, isView := viewedBy(viewKey("c1", 2)); id != "c1" || !isView {
		t.Error(id, isView)
	}
	if id, isView := viewedBy("c1"); id != "c1" || isView {
		t.Error(id, isView)
	}
	if withImageRefs(&state.Container{Config: ctr("c1")}) != nil {
		t.Error("mounts out of nothing")
	}
}
