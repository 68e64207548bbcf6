// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// moving is an image store in which somebody else moves all names to another image, or removes
// them, before a call.
type moving struct {
	*fake
	left    int // calls until then
	kept    int // names after that
	meddle  func(f *fake)
	unpacks []digest.Digest // targets
	opened  []string        // checkpoints, by ID
}

func (m *moving) call() {
	if m.left--; m.left == 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.meddle(m.fake)
		m.kept = len(m.names)
	}
}

func (m *moving) Get(ctx context.Context, name string) (Stored, error) {
	m.call()
	return m.fake.Get(ctx, name)
}

func (m *moving) Delete(ctx context.Context, n Name) error {
	m.call()
	return m.fake.Delete(ctx, n)
}

func (m *moving) Contents(ctx context.Context) (Contents, error) {
	m.call()
	return m.fake.Contents(ctx)
}

func (m *moving) Pull(ctx context.Context, ref string, c Credentials, sn string, w Sink) (Stored, error) {
	m.call()
	return m.fake.Pull(ctx, ref, c, sn, w)
}

func (m *moving) Unpack(ctx context.Context, n Name, _ string) error {
	m.call()
	m.unpacks = append(m.unpacks, n.Target().Digest)
	return nil
}

func (m *moving) Checkpoint(_ context.Context, id string) (io.ReadCloser, error) {
	m.call()
	m.opened = append(m.opened, id)
	return io.NopCloser(strings.NewReader("")), nil
}

// PROPERTIES 57: whatever names stand for by the time of each call, a call acts on the image that
// it was decided on: it pulls, unpacks and opens that one, and removes no name of another.
func TestNamesThatMoveBetweenTwoCallsChangeNoDecision(t *testing.T) {
	const tag = "r.example/app:1"
	otherID := "sha256:" + strings.Repeat("b", 64)
	otherTarget := digest.Digest("sha256:" + strings.Repeat("e", 64))
	for how, meddle := range map[string]func(f *fake){
		"moved": func(f *fake) {
			for name := range f.names {
				f.names[name] = storedAs(name, otherID, otherTarget)
			}
		},
		"removed": func(f *fake) { clear(f.names) },
	} {
		for name, run := range map[string]func(s *Service, img Image) error{
			"pull": func(s *Service, _ Image) error {
				id, err := s.Pull(t.Context(), tag, nil, Caller{})
				if err == nil && id != imageID {
					t.Errorf("pulled %s", id)
				}
				return err
			},
			"unpack":     func(s *Service, img Image) error { return s.Unpack(t.Context(), img.ID, "fake") },
			"checkpoint": func(s *Service, img Image) error { _, err := s.Checkpoint(t.Context(), img.ID); return err },
			"remove":     func(s *Service, _ Image) error { return s.Remove(t.Context(), tag) },
			"prune": func(s *Service, _ Image) error {
				p, err := s.Prune(t.Context(), PruneOptions{Used: unused})
				if err == nil && (len(p.Images) != 1 || p.Images[0].ID != imageID || p.Images[0].Error != "") {
					t.Errorf("pruned %+v", p)
				}
				return err
			},
		} {
			for at := 1; ; at++ {
				m := &moving{fake: newFake(), left: at, meddle: meddle}
				close(m.release)
				old := stored(tag, imageID)
				old.Created = old.Created.AddDate(1, 0, 0)
				m.put(old)
				s := New(m, Config{Logger: slog.New(slog.DiscardHandler)})
				try(t, s.Refresh(t.Context()))
				img, err := s.Resolve(tag)
				try(t, err)
				if err := run(s, img); err != nil {
					t.Errorf("%s, %s before call %d: %v", name, how, at, err)
				}
				if m.left > 0 { // it makes fewer calls
					break
				}
				if i := slices.IndexFunc(m.unpacks, func(d digest.Digest) bool { return d != manifestID }); i >= 0 {
					t.Errorf("%s, %s before call %d: %s was unpacked", name, how, at, m.unpacks[i])
				}
				if len(m.opened) > 0 && m.opened[0] != imageID {
					t.Errorf("%s, %s before call %d: checkpoint %s was opened", name, how, at, m.opened)
				}
				if len(m.names) < m.kept {
					t.Errorf("%s, %s before call %d: names of another image were removed", name, how, at)
				}
				try(t, s.Refresh(t.Context())) // the events of containerd's list do that
				for text, st := range m.names {
					got, err := s.Resolve(text)
					if wrong := st.Name.IsWrong(); err == nil && (wrong || got.ID != st.ID && got.ID != text) {
						t.Errorf("%s, %s before call %d: %s is %s", name, how, at, text, got.ID)
					}
				}
			}
		}
	}
}

// PROPERTIES 57: a name that has the digest of another image, or is not complete, is not used: it
// finds nothing and decides nothing. Its image is there by its ID, and goes with all its names.
func TestAWrongNameIsNotUsed(t *testing.T) {
	f := newFake()
	wrong := []string{"r.example/app@sha256:" + strings.Repeat("e", 64), "bbx:latest", "sha256:" + strings.Repeat("c", 64)}
	for _, name := range wrong {
		f.names[name] = stored(name, imageID)
	}
	var log strings.Builder
	s := New(f, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Needed: []string{"bbx"}, Pinned: []string{"r.example/*"}})
	try(t, s.Refresh(t.Context()))
	for _, name := range wrong {
		if got, err := s.Resolve(name); !errdefs.IsNotFound(err) {
			t.Errorf("%s is %s: %v", name, got.ID, err)
		}
		if !strings.Contains(log.String(), name) {
			t.Errorf("the log does not name %s: %s", name, log.String())
		}
	}
	i, err := s.Resolve(imageID)
	if err != nil || len(i.Tags)+len(i.Digests) != 0 || i.Pinned || i.Ref() != imageID || s.Name(imageID, imageID) != imageID {
		t.Errorf("%+v %v", i, err)
	}
	try(t, s.Remove(t.Context(), imageID))
	if len(f.names) != 0 {
		t.Errorf("left are %v", f.names)
	}
}

// PROPERTIES 57: an image that was found by a name speaks as that name, and one that was found by
// its ID as the name that it has had for longest: not as the one that sorts first.
func TestAnImageSpeaksAsTheNameThatItWasFoundBy(t *testing.T) {
	f := newFake()
	evil, good := "sha256:"+strings.Repeat("e", 64), "sha256:"+strings.Repeat("f", 64)
	for n, st := range []Stored{storedAs("z.example/good:1", imageID, digest.Digest(good)), storedAs("a.example/evil:1", imageID, digest.Digest(evil))} {
		st.Created, st.Size = st.Created.AddDate(n+1, 0, 0), int64(n)
		f.put(st)
	}
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	try(t, s.Refresh(t.Context()))
	for ref, want := range map[string]string{
		"z.example/good:1":       good,
		"z.example/good@" + good: good,
		imageID:                  good,
		"a.example/evil:1":       evil,
	} {
		i, err := s.Resolve(ref)
		if err != nil || i.Name.Target().Digest.String() != want || !strings.HasSuffix(i.Ref(), want) {
			t.Errorf("%s is %s, %s: %v", ref, i.Name.Target().Digest, i.Ref(), err)
		}
	}
}

// PROPERTIES 57: an image whose blobs are there under one manifest is unpacked, whatever other
// manifest claims its layers, for itself or for another image.
func TestAnImageIsUnpackedFromWhicheverOfItsManifestsCanBe(t *testing.T) {
	f := &forgeries{fake: newFake(), good: digest.Digest("sha256:" + strings.Repeat("f", 64))}
	for n, st := range []Stored{
		storedAs("a.example/evil:1", imageID, digest.Digest("sha256:"+strings.Repeat("e", 64))),
		storedAs("z.example/good:1", imageID, f.good),
	} {
		st.Created = st.Created.AddDate(n+1, 0, 0)
		f.put(st)
	}
	for _, c := range "0123456789" { // other images with the same layers
		st := stored("b.example/"+string(c)+":1", "sha256:"+strings.Repeat(string(c), 64))
		st.ChainID = "chain-" + imageID
		f.put(st)
	}
	s := New(f, Config{Logger: slog.New(slog.DiscardHandler)})
	try(t, s.Refresh(t.Context()))
	try(t, s.Unpack(t.Context(), imageID, "fake"))
	f.packed["chain-"+imageID] = true
	if _, _, err := s.Files(t.Context(), Root{ChainID: "chain-" + imageID}); err != nil {
		t.Error(err)
	}
}

// forgeries is a store in which one target alone can be unpacked.
type forgeries struct {
	*fake
	good digest.Digest
}

func (f *forgeries) Unpack(_ context.Context, n Name, _ string) error {
	if n.Target().Digest != f.good {
		return errdefs.ErrFailedPrecondition
	}
	clear(f.packed)
	return nil
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
