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
)

func TestTheSandboxImageIsPulledOnceMountedAndGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		b := start(t, w)
		first, second := b.pod("p1", "imaged"), b.pod("p2", "imaged")
		w.set(func() {
			if n := len(slices.DeleteFunc(slices.Clone(w.did), func(op string) bool { return op != "pull "+atRegistry })); n != 1 {
				t.Errorf("pulled %d times for two pods", n)
			}
			s := w.specs[first]
			if s.Root.Path != "/volumes/"+first+"/0" || !s.Root.Readonly || !slices.Equal(s.Process.Args, []string{"x"}) {
				t.Errorf("the pause process is %q in %+v", s.Process.Args, s.Root)
			}
			for _, id := range []string{first, second} {
				if !w.objects["snapshot/"+viewKey(id, 0)] {
					t.Errorf("there is no layer for %s: %v", id, w.objects)
				}
			}
		})
		for _, id := range []string{first, second} {
			if err := b.RemovePodSandbox(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		w.set(func() {
			if len(w.objects) != 0 {
				t.Errorf("left: %v", w.objects)
			}
			// The layer goes once nothing is mounted from it any more.
			if slices.Index(w.did, "delete-files "+first) > slices.Index(w.did, "delete-snapshot "+viewKey(first, 0)) {
				t.Errorf("%q", w.did)
			}
		})
	})
}

func TestASandboxImageThatCannotBePulledIsNamedAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fail["pull"] = errdefs.ErrUnavailable
		b := start(t, w)
		_, err := b.RunPodSandbox(t.Context(), config("p1"), "imaged")
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "sandbox image of handler imaged") {
			t.Error(err)
		}
		if n := len(b.ListPodSandbox(&runtimeapi.PodSandboxFilter{})); n != 0 || len(w.objects) != 0 {
			t.Errorf("%d sandboxes, left %v", n, w.objects)
		}
		w.set(func() { clear(w.fail) })
		b.pod("p1", "imaged") // the name is free
	})
}

// PROPERTIES 4: whatever step of mounting a sandbox image a kill cuts off, the next berth gives back
// what was made, and the sandbox is not there.
func TestNothingIsLeftOfASandboxImageThatAKillCutOff(t *testing.T) {
	for _, step := range []string{"create-snapshot", "create-sandbox", "create-container", "create-task"} {
		for _, recorded := range []bool{true, false} { // false: a backup was restored
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				b := start(t, w)
				again := cutOff(t, w, b, step, recorded, func(ctx context.Context) {
					_, _ = b.RunPodSandbox(ctx, config("p1"), "imaged")
				})
				if len(again.ListPodSandbox(&runtimeapi.PodSandboxFilter{})) != 0 {
					t.Errorf("%s: the sandbox is there", step)
				}
				w.set(func() {
					if len(w.objects) != 0 {
						t.Errorf("%s, recorded %v: left %v", step, recorded, w.objects)
					}
				})
			})
		}
	}
}
