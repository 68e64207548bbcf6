// SPDX-License-Identifier: Apache-2.0

package image

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pinnedNames lists the tags of the images that are pinned.
func pinnedNames(t *testing.T, s *Service) (tags []string) {
	t.Helper()
	list, err := s.List(&runtimeapi.ImageFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		if i.GetPinned() {
			tags = append(tags, i.GetRepoTags()...)
		}
	}
	slices.Sort(tags)
	return tags
}

func TestAPatternMatchesAllOfAName(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"registry.example/*", "registry.example/team/app:1", true},
		{"registry.example/*", "other.example/registry.example/app:1", false},
		{"*/app:*", "registry.example/team/app:1", true},
		{"*/app:1", "registry.example/team/app:12", false},
		{"*app*:1", "registry.example/app-app:1", true},
		{"*", "x", true},
		{"a*a", "a", false},
		{"app:1", "app:1", true},
	} {
		if got := glob(c.pattern, c.name); got != c.want {
			t.Errorf("%s matches %s: got %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}

// An image is pinned by its name, its ID or a pattern in the configuration, by containerd's label,
// because pods need it, and because an archive brings it along. A change of the configuration holds
// for the images that are here.
func TestImagesArePinned(t *testing.T) {
	f := newFake()
	for name, id := range map[string]string{
		"docker.io/library/busybox:latest": "sha256:1",
		"docker.io/library/nginx:1":        "sha256:2",
		"registry.example/team/app:1":      "sha256:3",
		"registry.example/team/db:1":       "sha256:4",
		"registry.example/pause:1":         "sha256:5",
		"registry.example/mine:1":          imageID,
	} {
		f.names[name] = stored(name, id)
	}
	const labelled = "docker.io/library/nginx:1"
	nginx := f.names[labelled]
	nginx.Pinned = true
	f.names[labelled] = nginx
	s := New(f, Config{
		Logger: slog.New(slog.DiscardHandler),
		Needed: []string{"registry.example/pause:1"},
		Pinned: []string{"busybox", "*/app:*", imageID},
	})
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect := func(want ...string) {
		t.Helper()
		if got := pinnedNames(t, s); !slices.Equal(got, want) {
			t.Errorf("got the pinned images %q, want %q", got, want)
		}
	}
	expect("docker.io/library/busybox:latest", labelled, "registry.example/mine:1", "registry.example/pause:1", "registry.example/team/app:1")
	for name, why := range map[string]Pin{"busybox": PinConfig, "nginx:1": PinLabel, "registry.example/pause:1": PinNeeded} {
		if i, err := s.Resolve(name); err != nil || !slices.Equal(i.Pins, []Pin{why}) {
			t.Errorf("%s is pinned for %q %v, want %s", name, i.Pins, err, why)
		}
	}
	s.SetPinned([]string{"nginx:*"}) // as users write it
	expect(labelled, "registry.example/pause:1")
	if i, _ := s.Resolve("nginx:1"); !slices.Equal(i.Pins, []Pin{PinLabel, PinConfig}) {
		t.Errorf("nginx:1 is pinned for %q, want its label and the configuration", i.Pins)
	}
	s.SetPinned(nil)
	s.pinArchives(map[string]bool{"sha256:4": true})
	if err := s.Refresh(t.Context()); err != nil { // the pins outlive it
		t.Fatal(err)
	}
	expect(labelled, "registry.example/pause:1", "registry.example/team/db:1")
	delete(f.names, labelled)
	if err := s.refreshName(t.Context(), labelled); err != nil {
		t.Fatal(err)
	}
	expect("registry.example/pause:1", "registry.example/team/db:1")
}

// An image is as old as its oldest name: a tag that is moved to it later does not make it younger.
func TestAnImageIsAsOldAsItsOldestName(t *testing.T) {
	f := newFake()
	old := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, at := range map[string]time.Time{"r.example/a:1": old.Add(time.Hour), "r.example/b:1": old, "r.example/c:1": {}} {
		st := stored(name, imageID)
		st.Created = at
		f.names[name] = st
	}
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if i, err := s.Resolve(imageID); err != nil || !i.Created.Equal(old) {
		t.Errorf("got an image of %v and error %v, want one of %v", i.Created, err, old)
	}
}
