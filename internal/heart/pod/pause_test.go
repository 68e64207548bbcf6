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
	"berth/test/world"
)

func TestTheSandboxImageIsPulledOnceMountedAndGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		first, second := b.pod("p1", "imaged"), b.pod("p2", "imaged")
		if n := b.Calls("pull", world.Remote); n != 1 {
			t.Errorf("pulled %d times for two pods", n)
		}
		s := b.Spec(first)
		if s.Root.Path != "/rootfs/"+first+"/0" || !s.Root.Readonly || !slices.Equal(s.Process.Args, []string{"/app"}) {
			t.Errorf("the pause process is %q in %+v", s.Process.Args, s.Root)
		}
		for _, id := range []string{first, second} {
			if left := b.Left(); !slices.Contains(left, "snapshot "+pod.ViewKey(id, 0)) {
				t.Errorf("there is no layer for %s: %q", id, left)
			}
		}
		for _, id := range []string{first, second} {
			if err := b.RemovePodSandbox(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		b.expectLeft(nil)
		// The layer goes once nothing is mounted from it any more.
		if did := b.Did(); slices.Index(did, "files-remove "+first) > slices.Index(did, "remove-snapshot "+pod.ViewKey(first, 0)) {
			t.Errorf("%q", did)
		}
	})
}

func TestASandboxImageThatCannotBePulledIsNamedAndLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		lift := b.Refuse("pull", "", errdefs.ErrUnavailable)
		_, err := b.RunPodSandbox(t.Context(), config("p1"), "imaged")
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "sandbox image of handler imaged") {
			t.Error(err)
		}
		if n := len(b.ListPodSandbox(&runtimeapi.PodSandboxFilter{})); n != 0 {
			t.Errorf("%d sandboxes", n)
		}
		b.expectLeft(nil)
		lift()
		b.pod("p1", "imaged") // the name is free
	})
}

// PROPERTIES 4: whatever step of mounting a sandbox image a kill cuts off, the next berth gives
// back what was made, and the sandbox is not there.
func TestNothingIsLeftOfASandboxImageThatAKillCutOff(t *testing.T) {
	for _, step := range []string{"prepare-snapshot", "create-sandbox", "create-container", "create-task"} {
		for _, recorded := range []bool{true, false} { // false: a backup was restored
			inBubble(t, func(t *testing.T, b *bubble) {
				again := cutOff(t, b, step, recorded, func(ctx context.Context) {
					_, _ = b.RunPodSandbox(ctx, config("p1"), "imaged")
				})
				if len(again.ListPodSandbox(&runtimeapi.PodSandboxFilter{})) != 0 {
					t.Errorf("%s: the sandbox is there", step)
				}
				if left := b.Left(); len(left) != 0 {
					t.Errorf("%s, recorded %v: left %q", step, recorded, left)
				}
			})
		}
	}
}
