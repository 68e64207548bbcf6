// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// shop is a registry with blobs, which counts what it is asked.
type shop struct {
	mu    sync.Mutex
	blobs map[digest.Digest][]byte
	asked int
	creds []Credentials
	away  error
}

func (s *shop) get(d digest.Digest) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.away != nil {
		return nil, s.away
	}
	b, ok := s.blobs[d]
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	return b, nil
}

func (s *shop) Manifest(_ context.Context, ref string) ([]byte, error) {
	_, d, _ := strings.Cut(ref, "@")
	return s.get(digest.Digest(d))
}

func (s *shop) Blob(_ context.Context, _ string, desc ocispec.Descriptor) ([]byte, error) {
	return s.get(desc.Digest)
}

// put adds a profile, and returns a reference of it.
func (s *shop) put(repository, profile string, change func(m *ocispec.Manifest)) string {
	m := ocispec.Manifest{
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: SeccompProfile,
		Config:       ocispec.Descriptor{MediaType: SeccompProfile},
		Layers:       []ocispec.Descriptor{{Digest: digest.FromString(profile), Size: int64(len(profile))}},
	}
	if change != nil {
		change(&m)
	}
	b, _ := json.Marshal(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[digest.FromString(profile)], s.blobs[digest.FromBytes(b)] = []byte(profile), b
	return "registry.example/" + repository + "@" + digest.FromBytes(b).String()
}

func openShop(t *testing.T, s *shop, dir string, change func(*ProfileConfig)) *Profiles {
	t.Helper()
	if s.blobs == nil {
		s.blobs = map[digest.Digest][]byte{}
	}
	cfg := ProfileConfig{
		Dir:      dir,
		MaxBytes: 100,
		Check: func(b []byte) error {
			if !strings.HasPrefix(string(b), "{") {
				return errdefs.ErrInvalidArgument
			}
			return nil
		},
		Registry: func(_ string, c Credentials) Registry {
			s.creds = append(s.creds, c)
			return s
		},
		Timeout: time.Minute,
		Logger:  slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	p := OpenProfiles(cfg)
	t.Cleanup(p.Close)
	return p
}

// PROPERTIES 69: the registry is asked once, also after a restart, and a profile is there until it is
// removed, which may be asked for twice. Two references of one profile are of one.
func TestAProfileIsPulledOnce(t *testing.T) {
	s, dir := &shop{}, filepath.Join(t.TempDir(), "profiles")
	p := openShop(t, s, dir, nil)
	ref := s.put("a", `{"x":1}`, nil)
	auth := &runtimeapi.AuthConfig{Username: "u", Password: "p"}
	for i, want := range []bool{false, true} {
		cached, err := p.Pull(t.Context(), ref, auth, Caller{})
		if err != nil || cached != want {
			t.Fatalf("pull %d: %v %v", i, cached, err)
		}
	}
	if s.asked != 2 || s.creds[0].Username != "u" {
		t.Errorf("the registry was asked %d times, with %v", s.asked, s.creds)
	}
	other := s.put("b", `{"x":1}`, nil)
	if _, err := p.Pull(t.Context(), other, nil, Caller{}); err != nil {
		t.Fatal(err)
	}
	asked := s.asked
	p = openShop(t, s, dir, nil)
	list := p.List()
	if len(list) != 1 || !slices.Equal(list[0].Refs, []string{ref, other}) || list[0].Size == 0 {
		t.Errorf("after a restart there are %+v", list)
	}
	if cached, err := p.Pull(t.Context(), ref, nil, Caller{}); err != nil || !cached || s.asked != asked {
		t.Errorf("after a restart: cached %v, %v", cached, err)
	}
	if b, err := p.Read(other); err != nil || string(b) != `{"x":1}` {
		t.Errorf("it is %q, %v", b, err)
	}
	for _, there := range []bool{true, false} {
		if removed, err := p.Remove(list[0].Digest); err != nil || removed != there {
			t.Errorf("removed %v, %v", removed, err)
		}
	}
	if _, err := p.Read(ref); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), ref) || len(p.List()) != 0 {
		t.Errorf("after its removal: %v, %v", err, p.List())
	}
}

// PROPERTIES 69: one bit of a file is changed, or it is cut off: nothing else is ever read under a
// reference than the profile whose digest it leads to. The berth that has it in memory finds it to
// be wrong exactly if the next one would not read it, and writes it again.
func TestADamagedProfileIsNotRead(t *testing.T) {
	s, dir := &shop{}, t.TempDir()
	p := openShop(t, s, dir, nil)
	ref := s.put("a", `{"x":1}`, nil)
	if _, err := p.Pull(t.Context(), ref, nil, Caller{}); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(dir + "/*")
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for at := range 8 * len(whole) {
		b := slices.Clone(whole)
		b[at/8] ^= 1 << (at % 8)
		if at%16 == 0 {
			b = b[:at/8]
		}
		if err := os.WriteFile(files[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		found, missing := p.Verify(ref, false)
		got, err := openShop(t, s, dir, nil).Read(ref)
		if want := map[bool]string{true: PartWhole, false: PartWrong}[err == nil]; missing != nil || found.Outcome != want {
			t.Fatalf("bit %d: it is found to be %+v, %v, and read with %v", at, found, missing, err)
		}
		if err == nil && string(got) != `{"x":1}` {
			t.Fatalf("bit %d: %q", at, got)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			t.Fatalf("bit %d: %v", at, err)
		}
	}
	for i, want := range []string{PartRepaired, PartWhole} {
		if found, err := p.Verify(p.List()[0].Digest, i == 0); err != nil || found.Outcome != want {
			t.Errorf("%+v, %v, want %s", found, err, want)
		}
	}
	if b, err := openShop(t, s, dir, nil).Read(ref); err != nil || string(b) != `{"x":1}` {
		t.Errorf("repaired, it is %q, %v", b, err)
	}
	if _, err := p.Verify("registry.example/a:1", true); !errdefs.IsNotFound(err) {
		t.Errorf("another one: %v", err)
	}
}

func TestAProfileThatCannotBeIsRefused(t *testing.T) {
	s := &shop{}
	p := openShop(t, s, t.TempDir(), nil)
	for name, tt := range map[string]struct {
		ref  string
		want error
	}{
		"a tag":             {"registry.example/a:1", ErrProfileInvalid},
		"not a reference":   {"UPPER", ErrProfileInvalid},
		"absent":            {"registry.example/a@" + digest.FromString("absent").String(), ErrRegistry},
		"another artifact":  {s.put("a", "{}", func(m *ocispec.Manifest) { m.ArtifactType = "x/y" }), ErrProfileInvalid},
		"no artifact":       {s.put("a", "{}", func(m *ocispec.Manifest) { m.ArtifactType, m.Config.MediaType = "", ocispec.MediaTypeImageConfig }), ErrProfileInvalid},
		"an image":          {s.put("a", "{}", func(m *ocispec.Manifest) { m.Config.MediaType = ocispec.MediaTypeImageConfig }), ErrProfileInvalid},
		"nothing says it":   {s.put("a", "{}", func(m *ocispec.Manifest) { m.ArtifactType, m.Config.MediaType = "", ocispec.MediaTypeEmptyJSON }), ErrProfileInvalid},
		"no layer":          {s.put("a", "{}", func(m *ocispec.Manifest) { m.Layers = nil }), ErrProfileInvalid},
		"two layers":        {s.put("a", "{}", func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[0]) }), ErrProfileInvalid},
		"too large":         {s.put("a", "{"+strings.Repeat(" ", 100)+"}", nil), ErrProfileInvalid},
		"an index":          {s.put("a", "{}", func(m *ocispec.Manifest) { m.MediaType = ocispec.MediaTypeImageIndex }), ErrProfileInvalid},
		"not a profile":     {s.put("a", "[]", nil), ErrProfileInvalid},
		"a layer elsewhere": {s.put("a", "{}", func(m *ocispec.Manifest) { m.Layers[0].Digest = digest.FromString("gone") }), ErrRegistry},
		"config alone":      {s.put("a", "{}", func(m *ocispec.Manifest) { m.ArtifactType = "" }), nil},
		"an empty config":   {s.put("a", "{ }", func(m *ocispec.Manifest) { m.Config.MediaType = ocispec.MediaTypeEmptyJSON }), nil},
	} {
		if _, err := p.Pull(t.Context(), tt.ref, nil, Caller{}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	s.away = fmt.Errorf("dial: %w", errdefs.ErrUnavailable)
	if _, err := p.Pull(t.Context(), s.put("b", "{}", nil), nil, Caller{}); !errors.Is(err, ErrRegistry) {
		t.Errorf("away: %v", err)
	}
	if n := len(p.List()); n != 2 {
		t.Errorf("%d are kept, and the others were refused", n)
	}
}

// rule is a policy that wants signatures, or not.
type rule struct{ pass, pull error }

func (r *rule) Pull(string, string) (Pass, error) { return r, r.pull }

func (r *rule) Pass(ctx context.Context, ref string, target ocispec.Descriptor, from Registry) error {
	_, _ = from.Blob(ctx, ref, target)
	return r.pass
}

// PROPERTIES 40 and 69: the policy decides before anything of a profile is read but its manifest, and
// once more about one that is here: a rule that came later holds for it, and then the registry was
// asked.
func TestAPolicyDecidesAboutAProfile(t *testing.T) {
	s, r := &shop{}, &rule{}
	var again error
	asks := false
	p := openShop(t, s, t.TempDir(), func(c *ProfileConfig) {
		c.Policy = r
		c.Again = func(ctx context.Context, _, ref string, target ocispec.Descriptor, from func(string) Registry) error {
			if asks {
				_, _ = from(ref).Blob(ctx, ref, target)
			}
			return again
		}
	})
	ref := s.put("a", "{}", nil)
	refused := fmt.Errorf("a rule: %w", errdefs.ErrPermissionDenied)
	for _, r.pull = range []error{refused, nil} {
		r.pass = refused
		if _, err := p.Pull(t.Context(), ref, nil, Caller{}); !errdefs.IsPermissionDenied(err) || len(p.List()) > 0 {
			t.Errorf("refused: %v %v", err, p.List())
		}
	}
	r.pass = nil
	if cached, err := p.Pull(t.Context(), ref, nil, Caller{}); err != nil || cached {
		t.Errorf("allowed: cached %v, %v", cached, err)
	}
	if cached, err := p.Pull(t.Context(), ref, nil, Caller{}); err != nil || !cached {
		t.Errorf("once more: cached %v, %v", cached, err)
	}
	asks = true
	if cached, err := p.Pull(t.Context(), ref, nil, Caller{}); err != nil || cached {
		t.Errorf("verified once more: cached %v, %v", cached, err)
	}
	again = refused
	if _, err := p.Pull(t.Context(), ref, nil, Caller{}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a rule that came later: %v", err)
	}
}

// PROPERTIES 12: how many profiles a node has is bounded.
func TestProfilesAreBounded(t *testing.T) {
	s := &shop{}
	p := openShop(t, s, t.TempDir(), nil)
	var last error
	for i := range mostProfiles + 1 {
		_, last = p.Pull(t.Context(), s.put("a", fmt.Sprintf(`{"%d":0}`, i), nil), nil, Caller{})
		if i < mostProfiles && last != nil {
			t.Fatal(i, last)
		}
	}
	if !errdefs.IsResourceExhausted(last) || len(p.List()) != mostProfiles {
		t.Errorf("%v, with %d profiles", last, len(p.List()))
	}
}
