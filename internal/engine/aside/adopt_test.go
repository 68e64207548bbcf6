// SPDX-License-Identifier: Apache-2.0

package aside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
	"berth/internal/engine/shims"
)

// PROPERTIES 17: a task whose shim answered again was given up when it could not be loaded at the
// first try. Containerd did not know it until the next start, and berth took it for gone.
func TestATaskThatCannotBeLoadedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1", "c2")
		loads := map[string]int{}
		a.load = func(_ context.Context, h *Task) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			if !exists(h.Bundle()) || exists(h.path()) || a.tasks[h.ID] != h {
				t.Errorf("%s is loaded while its bundle is hidden, or it is not set aside", h.ID)
			}
			if loads[h.ID]++; h.ID == "c1" && loads[h.ID] < 3 {
				return errors.New("the disk is full")
			}
			return nil
		}
		h1, h2 := a.get("c1"), a.get("c2")
		adopted(t.Context(), a)
		if loads["c1"] != 3 || loads["c2"] != 1 || len(a.all()) > 0 {
			t.Errorf("loads: %v; %d are set aside", loads, len(a.all()))
		}
		for _, h := range []*Task{h1, h2} {
			if !exists(h.Bundle()) || exists(h.path()) {
				t.Errorf("the bundle of %s does not have its name", h.ID)
			}
		}
	})
}

func TestATaskThatCannotBeLoadedStaysHiddenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1")
		ctx, cancel := context.WithCancel(t.Context())
		a.load = func(context.Context, *Task) error {
			cancel() // the server is stopped
			return errors.New("the disk is full")
		}
		adopted(ctx, a)
		h := a.get("c1")
		if h == nil || exists(h.Bundle()) || !exists(h.path()) {
			t.Errorf("set aside: %v", h)
		}
	})
}

// A task without a container, and one whose bundle is gone, will never be loaded.
func TestATaskThatIsGoneIsNotTriedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1", "c2")
		a.load = func(_ context.Context, h *Task) error {
			if h.ID == "c1" {
				return fmt.Errorf("container %s: %w", h.ID, errdefs.ErrNotFound)
			}
			if err := os.RemoveAll(h.Bundle()); err != nil {
				t.Error(err)
			}
			return errors.New("the shim ended")
		}
		h1, h2 := a.get("c1"), a.get("c2")
		adopted(t.Context(), a)
		if len(a.all()) > 0 || !exists(h1.Bundle()) || exists(h2.Bundle()) {
			t.Errorf("%d are set aside", len(a.all()))
		}
	})
}

// PROPERTIES 17: a shim that was killed while its task was set aside will never answer. Its task
// was asked for and refused for ever, and so never released.
func TestATaskWhoseShimHasEndedIsNotSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1")
		h := a.get("c1")
		if err := os.WriteFile(h.path()+"/bootstrap.json", []byte(`{"version":3,"protocol":"ttrpc","address":"unix:///no/such/socket"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		a.load = func(context.Context, *Task) error {
			t.Error("it is loaded")
			return nil
		}
		cleaned := 0
		a.cleanUp = func(context.Context, *Task) error {
			cleaned++
			return errors.New("the program is missing")
		}
		adopted(t.Context(), a)
		if cleaned != 1 {
			t.Errorf("cleaned up after %d times", cleaned)
		}
		if a.get("c1") != nil || !exists(h.Bundle()) || exists(h.path()) {
			t.Error("it is set aside, or its bundle does not have its name")
		}
	})
}

// PROPERTIES 17: who asks for a task does not wait for the shims of others.
func TestATaskIsLoadedWhenItIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := hiding(t, "c1", "c2")
		release := make(chan struct{})
		a.load = func(_ context.Context, h *Task) error {
			if h.ID == "c2" {
				<-release
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if !a.SetAside(ctx, "c2") {
			t.Error("c2 is not set aside while it is being loaded")
		}
		if a.SetAside(t.Context(), "c1") || a.SetAside(t.Context(), "c3") {
			t.Error("c1 is set aside after it was asked for, or c3, of which nothing is known")
		}
		close(release)
		if a.SetAside(t.Context(), "c2") {
			t.Error("c2 is still set aside")
		}
		a.Stop()
		a.begin(t.Context(), &Task{asked: make(chan struct{})}) // asks nobody, and hangs nobody
	})
}

// adopted has the tasks adopted until none is left or ctx ends.
func adopted(ctx context.Context, a *Tasks) {
	a.adopt(ctx)
	a.Stop()
}

// hiding has tasks whose bundles are hidden, and whose shims answer.
func hiding(t *testing.T, ids ...string) *Tasks {
	t.Helper()
	a := newTasks(t.Context())
	dir := t.TempDir()
	for _, id := range ids {
		h := &Task{ID: id, Dir: dir, asked: make(chan struct{})}
		a.tasks[id] = h
		if err := os.Mkdir(h.path(), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// The setting tricks.set_aside turned off: what the server before has hidden is containerd's again.
func TestLeaveGivesHiddenBundlesTheirNamesBack(t *testing.T) {
	state := t.TempDir()
	bundles := filepath.Join(state, taskPart, connection.Namespace)
	l, err := net.Listen("unix", filepath.Join(state, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bootstrap := `{"version":3,"protocol":"ttrpc","address":"unix://` + l.Addr().String() + `"}`
	for _, name := range []string{"c1", shims.AsidePrefix + "c2"} {
		if err := os.MkdirAll(filepath.Join(bundles, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"bootstrap.json": bootstrap, "sandbox": "p1"} {
			if err := os.WriteFile(filepath.Join(bundles, name, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, err := Hide(t.Context(), state)
	if err != nil || len(a.all()) != 2 || exists(filepath.Join(bundles, "c1")) {
		t.Fatalf("%d of 2 tasks are set aside: %v", len(a.all()), err)
	}
	if a, err = Leave(t.Context(), state); err != nil || len(a.all()) != 0 || a.SetAside(t.Context(), "c1") {
		t.Errorf("%d tasks are set aside: %v", len(a.all()), err)
	}
	for _, id := range []string{"c1", "c2"} {
		if !exists(filepath.Join(bundles, id)) {
			t.Errorf("the bundle of %s is hidden", id)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
