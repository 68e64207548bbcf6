// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
)

// A caller that removes what it has made in part knows the ID before anything is there, and nobody
// else gets that sandbox.
func TestASandboxIsNotedBeforeItIsMade(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		full := errors.New("no space left")
		if _, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(string) error { return full }); !errors.Is(err, full) {
			t.Error(err)
		}
		b.expectLeft(nil)

		release := b.Hold("cni-add", "")
		noted := ""
		made := make(chan string, 1)
		go func() {
			id, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(id string) error {
				noted = id
				b.expectLeft(nil)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			made <- id
		}()
		synctest.Wait()
		if id, err := b.RunPodSandbox(t.Context(), config("p1"), ""); !errdefs.IsAlreadyExists(err) {
			t.Errorf("another call got %q %v", id, err)
		}
		release()
		if id := <-made; id == "" || id != noted {
			t.Errorf("%q was noted, and %q was made", noted, id)
		}
		if _, err := b.RunNotedPodSandbox(t.Context(), config("p1"), "", func(string) error { return nil }); !errdefs.IsAlreadyExists(err) {
			t.Error(err)
		}
	})
}

// Whichever step fails, everything that was made is undone.
func TestACreationThatFailsLeavesNothing(t *testing.T) {
	for _, op := range []string{"netns", "cni-add", "create-sandbox", "create-container", "create-task", "start-task"} {
		t.Run(op, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				lift := b.Refuse(op, "", errors.New("it fails"))
				if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
					t.Fatal("it did not")
				}
				b.expectLeft(nil)
				if len(b.Records().Sandboxes) != 0 {
					t.Error("the record is left")
				}
				lift()
				b.pod("p1", "") // the name is free
			})
		})
	}
}
