// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// shelf makes an image store with images that share layers and blobs:
//
//	app:1 and app:2 are on base, which base:1 is as well; old:1 has a layer of its own, on which a
//	container is; alone:1 shares nothing.
func shelf(t *testing.T) (*fake, *Service) {
	t.Helper()
	f := newFake()
	layer := func(parent string, size int64) Layer { return Layer{Parent: parent, Size: size, Measured: true} }
	f.contents = Contents{
		Blobs:    map[string]int64{"b-base": 10, "b-1": 1, "b-2": 2, "b-old": 4, "b-alone": 8},
		Layers:   map[string]Layer{"base": layer("", 1000), "l-1": layer("base", 100), "l-2": layer("base", 200), "l-old": layer("", 400), "l-alone": layer("", 800)},
		Writable: map[string]Layer{"container": layer("l-old", 5000)},
		Images:   map[string]Parts{},
	}
	now := time.Now()
	for n, i := range []struct {
		name, chain string
		blobs       []string
	}{
		{"base:1", "base", []string{"b-base"}},
		{"app:1", "l-1", []string{"b-base", "b-1"}},
		{"app:2", "l-2", []string{"b-base", "b-2"}},
		{"old:1", "l-old", []string{"b-old"}},
		{"alone:1", "l-alone", []string{"b-alone", "of another platform"}},
	} {
		st := stored("registry.example/"+i.name, "sha256:"+i.name)
		st.ChainID, st.Created = i.chain, now.Add(-time.Hour+time.Duration(n)*time.Second)
		f.names[st.Name.String()] = st
		p := Parts{ChainID: i.chain, Blobs: map[string]bool{}}
		for _, b := range i.blobs {
			p.Blobs[b] = true
		}
		f.contents.Images[st.ID] = p
	}
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f, s
}

func unused() map[string][]string { return nil }

// What the removal of an image frees is what neither another image nor a container needs.
func TestWhatAnImageFreesIsItsOwn(t *testing.T) {
	_, s := shelf(t)
	list, err := s.Details(t.Context(), func() map[string][]string { return map[string][]string{"sha256:app:1": {"team/web/app"}} })
	if err != nil || len(list) != 5 {
		t.Fatalf("%+v %v", list, err)
	}
	for n, want := range []Listed{
		{ID: "sha256:base:1", Disk: 1010, Frees: 0},
		{ID: "sha256:app:1", Disk: 1111, Frees: 101, Users: []string{"team/web/app"}},
		{ID: "sha256:app:2", Disk: 1212, Frees: 202},
		{ID: "sha256:old:1", Disk: 404, Frees: 4}, // a container is on its layer
		{ID: "sha256:alone:1", Disk: 808, Frees: 808},
	} {
		if got := list[n]; got.ID != want.ID || got.Disk != want.Disk || got.Frees != want.Frees || !slices.Equal(got.Users, want.Users) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// Layers that refer to each other in a circle, in a store that is broken, are no endless work.
func TestACircleOfLayersEnds(t *testing.T) {
	f, s := shelf(t)
	f.contents.Layers["base"] = Layer{Parent: "l-1", Size: 1}
	if _, err := s.Details(t.Context(), unused); err != nil {
		t.Error(err)
	}
}

func TestPruneRemovesWhatNothingNeeds(t *testing.T) {
	f, s := shelf(t)
	s.SetPinned([]string{"*/alone:*"})
	young := f.names["registry.example/app:2"]
	young.Created = time.Now()
	f.names[young.Name.String()] = young
	if err := s.refreshName(t.Context(), young.Name.String()); err != nil {
		t.Fatal(err)
	}
	o := PruneOptions{DryRun: true, OlderThan: time.Minute, Used: func() map[string][]string { return map[string][]string{"sha256:old:1": {"c"}} }}
	expect := func(when string) {
		t.Helper()
		got, err := s.Prune(t.Context(), o)
		if err != nil || got.Pinned != 1 || got.Used != 1 || got.Young != 1 || len(got.Images) != 2 ||
			got.Images[0].ID != "sha256:base:1" || got.Images[0].Bytes != 0 || got.Images[1].ID != "sha256:app:1" || got.Images[1].Bytes != 101 || got.Bytes != 101 {
			t.Errorf("%s: %+v %v", when, got, err)
		}
	}
	expect("a dry run")
	if len(f.names) != 5 {
		t.Errorf("a dry run has left %d names", len(f.names))
	}
	o.DryRun = false
	expect("a run")
	if _, ok := f.names["registry.example/app:1"]; ok || len(f.names) != 3 {
		t.Errorf("left are %v", f.names)
	}
}

// An image that a container came to use after the images were looked at stays.
func TestPruneAsksAgainBeforeItRemoves(t *testing.T) {
	f, s := shelf(t)
	asked := 0
	got, err := s.Prune(t.Context(), PruneOptions{Used: func() map[string][]string {
		if asked++; asked > 1 {
			return map[string][]string{"sha256:app:1": {"c"}}
		}
		return nil
	}})
	if err != nil || len(got.Images) != 4 || f.names["registry.example/app:1"].ID == "" {
		t.Errorf("%+v %v", got, err)
	}
}

// The command asked for one name and CRI's call removed all of them, used or not.
func TestTheRemovalOfANameLeavesTheOthers(t *testing.T) {
	const id = "sha256:app:1"
	digest := "@sha256:" + strings.Repeat("d", 64)
	used := func() map[string][]string { return map[string][]string{id: {"team/web/app"}} }
	for _, tt := range []struct {
		name, ref string
		names     []string // that the image has beside app:1
		o         RemoveOptions
		taken     int
		left      int
		refused   func(error) bool
	}{
		{"one of two tags", "registry.example/app:1", []string{"registry.example/other:1"}, RemoveOptions{Used: used}, 1, 1, nil},
		{"the digest stays with a tag", "registry.example/app:1", []string{"registry.example/app:latest", "registry.example/app" + digest}, RemoveOptions{Used: used}, 1, 2, nil},
		{"the digest goes with the last tag", "registry.example/app:1", []string{"registry.example/app" + digest, "registry.example/other:1"}, RemoveOptions{Used: used}, 2, 1, nil},
		{"the last name of one in use", "registry.example/app:1", nil, RemoveOptions{Used: used}, 0, 1, errdefs.IsFailedPrecondition},
		{"and with force", "registry.example/app:1", nil, RemoveOptions{Used: used, Force: true}, 1, 0, nil},
		{"a dry run", "registry.example/app:1", nil, RemoveOptions{Used: used, DryRun: true}, 0, 1, nil},
		{"an ID of two tags", id, []string{"registry.example/other:1"}, RemoveOptions{Used: unused}, 0, 2, errdefs.IsFailedPrecondition},
		{"and with force", id, []string{"registry.example/other:1"}, RemoveOptions{Used: unused, Force: true}, 2, 0, nil},
		{"an ID of one tag", id, nil, RemoveOptions{Used: unused}, 1, 0, nil},
		{"an absent one", "registry.example/none:1", nil, RemoveOptions{Used: unused}, 0, 1, errdefs.IsNotFound},
	} {
		f, s := shelf(t)
		for _, name := range tt.names {
			st := stored(name, id)
			st.ChainID = f.names["registry.example/app:1"].ChainID
			f.names[name] = st
		}
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := len(f.names)
		r, err := s.RemoveName(t.Context(), tt.ref, tt.o)
		i, _ := s.Resolve(id)
		if tt.refused == nil && err != nil || tt.refused != nil && !tt.refused(err) ||
			before-len(f.names) != tt.taken || len(i.Tags)+len(i.Digests) != tt.left || err == nil && !tt.o.DryRun && len(r.Names) != tt.taken {
			t.Errorf("%s: %+v %v, left %v", tt.name, r, err, i.Names)
		}
	}
}

// PROPERTIES 59: what pulls that were cut off have left is pruned, and counts.
func TestPruneRemovesWhatPullsHaveLeft(t *testing.T) {
	f, s := shelf(t)
	f.contents.Kept = []Kept{{Ref: "registry.example/cut:1", Bytes: 200}}
	for _, dry := range []bool{true, false} {
		without := int64(0)
		got, err := s.Prune(t.Context(), PruneOptions{DryRun: dry, Used: unused})
		for _, i := range got.Images {
			without += i.Bytes
		}
		if err != nil || got.Kept != 200 || got.Bytes != without+200 || dry != (len(f.contents.Kept) > 0) {
			t.Errorf("dry run %t: %+v %v, left %+v", dry, got, err, f.contents.Kept)
		}
	}
}

// An image that cannot be removed is named, and the others are removed.
func TestPruneGoesOn(t *testing.T) {
	f, s := shelf(t)
	s.backend = stuck{f, "registry.example/base:1"}
	got, err := s.Prune(t.Context(), PruneOptions{Used: unused})
	if err != nil || len(got.Images) != 5 || got.Images[0].Error == "" || len(f.names) != 1 {
		t.Errorf("%+v %v", got, err)
	}
	if want := int64(101 + 202 + 4 + 808); got.Bytes != want {
		t.Errorf("%d bytes were freed, want %d", got.Bytes, want)
	}
}

// stuck is an image store in which a name cannot be removed.
type stuck struct {
	*fake
	name string
}

func (s stuck) Delete(ctx context.Context, n Name) error {
	if n.String() == s.name {
		return errors.New("the disk is read-only")
	}
	return s.fake.Delete(ctx, n)
}

func TestSharesAreOfAllImages(t *testing.T) {
	f, s := shelf(t)
	f.contents.Layers["unmeasured"] = Layer{}
	f.contents.Coming, f.contents.Kept = 300, []Kept{{Ref: "registry.example/cut:1", Reason: "unreachable", Bytes: 200}}
	got, err := s.Shares(t.Context(), func() map[string][]string { return map[string][]string{"sha256:base:1": {"c"}} })
	if err != nil || len(got) != 5 || !strings.Contains(got[3].Note, "registry.example/cut:1") {
		t.Fatalf("%+v %v", got, err)
	}
	for n, want := range []Share{
		{What: "images", Count: 5, Bytes: 2525, Reclaimable: 1115, Unknown: 1},
		{What: "layers", Count: 6, Bytes: 2500, Reclaimable: 1100, Unknown: 1},
		{What: "blobs", Count: 5, Bytes: 25, Reclaimable: 15},
		{What: "pulls", Count: 1, Bytes: 300, Reclaimable: 200},
		{What: "writable layers", Count: 1, Bytes: 5000},
	} {
		got[n].Note = ""
		if got[n] != want {
			t.Errorf("%+v, want %+v", got[n], want)
		}
	}
}

func TestKindsOfFailures(t *testing.T) {
	for want, err := range map[string]error{
		"succeeded":   nil,
		"stalled":     because(canceledBy(stalled("no byte came")), context.Canceled),
		"canceled":    because(canceledBy(errGone), context.Canceled),
		"throttled":   fmt.Errorf("pull: %w", Failure{Kind: "throttled", Err: errdefs.ErrUnavailable}),
		"unreachable": &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		"disk_full":   fmt.Errorf("write: %w", syscall.ENOSPC),
		"not_found":   errdefs.ErrNotFound,
		"unavailable": errdefs.ErrUnavailable,
		"other":       errors.New("x"),
	} {
		if got := Kind(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
}

func canceledBy(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}
