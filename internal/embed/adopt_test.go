// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
)

// PROPERTIES 17: a task whose shim answered again was given up when it could not be loaded at the
// first try. Containerd did not know it until the next start, and berth took it for gone.
func TestATaskThatCannotBeLoadedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1", "c2")
		loads := map[string]int{}
		a.adopt(t.Context(), func(_ context.Context, id string) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			if !exists(a.bundle(id)) || exists(a.hidden(id)) || !a.tasks[id] {
				t.Errorf("%s is loaded while its bundle is hidden, or it is not set aside", id)
			}
			if loads[id]++; id == "c1" && loads[id] < 3 {
				return errors.New("the disk is full")
			}
			return nil
		})
		if loads["c1"] != 3 || loads["c2"] != 1 || len(a.all()) > 0 {
			t.Errorf("loads: %v; set aside: %q", loads, a.all())
		}
		for _, id := range []string{"c1", "c2"} {
			if !exists(a.bundle(id)) || exists(a.hidden(id)) {
				t.Errorf("the bundle of %s does not have its name", id)
			}
		}
	})
}

func TestATaskThatCannotBeLoadedStaysHiddenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1")
		ctx, cancel := context.WithCancel(t.Context())
		a.adopt(ctx, func(context.Context, string) error {
			cancel() // the server is stopped
			return errors.New("the disk is full")
		})
		if exists(a.bundle("c1")) || !exists(a.hidden("c1")) || !slices.Equal(a.all(), []string{"c1"}) {
			t.Errorf("set aside: %q; hidden: %t", a.all(), exists(a.hidden("c1")))
		}
	})
}

// A task without a container, and one whose bundle is gone, will never be loaded.
func TestATaskThatIsGoneIsNotTriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1", "c2")
		a.adopt(t.Context(), func(_ context.Context, id string) error {
			if id == "c1" {
				return fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
			}
			if err := os.RemoveAll(a.bundle(id)); err != nil {
				t.Error(err)
			}
			return errors.New("the shim ended")
		})
		if len(a.all()) > 0 || !exists(a.bundle("c1")) || exists(a.bundle("c2")) {
			t.Errorf("set aside: %q", a.all())
		}
	})
}

// hiding has tasks whose bundles are hidden, and whose shims answer.
func hiding(t *testing.T, ids ...string) *aside {
	t.Helper()
	a := &aside{in: map[string]string{}, tasks: map[string]bool{}}
	dir := t.TempDir()
	for _, id := range ids {
		a.in[id], a.tasks[id] = dir, true
		if err := os.Mkdir(a.hidden(id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
