// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/wholefile"
)

// Bounds of all profiles together, and of the references of one. A kubelet removes those that no
// pod names.
const (
	mostProfiles     = 256
	mostProfileBytes = 64 << 20
	mostProfileRefs  = 64
	maxProfileText   = 16 << 20 // of one file
)

// profileStore keeps profiles, each in a file with the manifests that lead to it. A manifest has
// the digest of its reference, and names that of the profile: so a file that was changed is not
// believed.
type profileStore struct {
	dir string

	mu  sync.Mutex
	all map[string]*keptProfile // by digest
}

// keptProfile is a file.
type keptProfile struct {
	Profile   []byte                  `json:"profile"`
	Manifests map[string]keptManifest `json:"manifests"` // by complete reference
	size      int64
}

type keptManifest struct {
	Manifest []byte   `json:"manifest"`
	Asked    []string `json:"asked"` // the reference as it was written
}

func openProfileStore(dir string, log *slog.Logger) *profileStore {
	s := &profileStore{dir: dir, all: map[string]*keptProfile{}}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("the security profiles cannot be read: each has to be pulled again", "dir", dir, "err", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		hex, ok := strings.CutSuffix(e.Name(), ".json")
		d := digest.NewDigestFromEncoded(digest.SHA256, hex)
		if !ok || !e.Type().IsRegular() || d.Validate() != nil {
			_ = os.Remove(path) // the remains of a write that was cut off
			continue
		}
		k, err := readProfile(path, d)
		if err != nil {
			log.Warn("a security profile is damaged and was removed: it has to be pulled again", "digest", d, "err", err)
			_ = os.Remove(path)
			continue
		}
		s.all[d.String()] = k
	}
	return s
}

// readProfile reads a file, and leaves out the references of which it has not the proof.
func readProfile(path string, d digest.Digest) (*keptProfile, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxProfileText {
		return nil, fmt.Errorf("it has %d bytes", st.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k := &keptProfile{size: st.Size()}
	if err := json.Unmarshal(b, k); err != nil {
		return nil, err
	}
	if digest.FromBytes(k.Profile) != d {
		return nil, errors.New("it has other bytes than its digest says")
	}
	maps.DeleteFunc(k.Manifests, func(ref string, m keptManifest) bool { return !leadsTo(ref, m.Manifest, k.Profile) })
	if len(k.Manifests) == 0 {
		return nil, errors.New("no manifest leads to it")
	}
	return k, nil
}

// find returns the digest of a profile that is named by it, or by a reference.
func (s *profileStore) find(name string) (d string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[name] != nil {
		return name, true
	}
	exact, err := exactly(name)
	if err != nil {
		return "", false
	}
	for d, k := range s.all {
		if _, ok := k.Manifests[exact.String()]; ok {
			return d, true
		}
	}
	return "", false
}

// verify compares the file of a profile with the profile, which is in memory, and writes it again
// if repair is set.
func (s *profileStore) verify(d string, repair bool) Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := Part{Kind: "profile", ID: d, Outcome: PartWhole}
	k := s.all[d]
	if k == nil {
		p.Outcome = PartRemoved
		return p
	}
	on, err := readProfile(s.path(d), digest.Digest(d))
	same := func(a, b keptManifest) bool { return bytes.Equal(a.Manifest, b.Manifest) }
	if err == nil && !maps.EqualFunc(on.Manifests, k.Manifests, same) {
		err = errors.New("a reference that leads to it was changed, or is missing")
	}
	if err == nil {
		return p
	}
	p.Outcome, p.Detail = PartWrong, err.Error()
	if repair {
		p.Outcome, p.Detail = PartRepaired, ""
		if err := s.writeLocked(d, k); err != nil {
			p.Outcome, p.Detail = PartWrong, err.Error()
		}
	}
	return p
}

// leadsTo reports whether a reference stands for a manifest, whose layer is a profile.
func leadsTo(ref string, manifest, profile []byte) bool {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return false
	}
	exact, ok := named.(reference.Canonical)
	if !ok || exact.Digest().Algorithm().FromBytes(manifest) != exact.Digest() {
		return false
	}
	var m ocispec.Manifest
	if json.Unmarshal(manifest, &m) != nil || len(m.Layers) != 1 || m.Layers[0].Digest.Validate() != nil {
		return false
	}
	return m.Layers[0].Digest.Algorithm().FromBytes(profile) == m.Layers[0].Digest
}

// get returns the manifest of a complete reference, and its profile.
func (s *profileStore) get(ref string) (manifest, profile []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.all {
		if m, ok := k.Manifests[ref]; ok {
			return m.Manifest, k.Profile, true
		}
	}
	return nil, nil, false
}

// put keeps a profile under a reference. When it returns, the profile is on the disk.
func (s *profileStore) put(ref string, manifest, profile []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := digest.FromBytes(profile)
	next := &keptProfile{Profile: profile, Manifests: map[string]keptManifest{}}
	var total int64
	for _, k := range s.all {
		total += k.size
	}
	if old := s.all[d.String()]; old != nil {
		next.Manifests = maps.Clone(old.Manifests)
	}
	next.Manifests[ref] = keptManifest{Manifest: manifest}
	switch {
	case s.all[d.String()] == nil && len(s.all) >= mostProfiles, total+int64(len(profile)) > mostProfileBytes:
		return fmt.Errorf("there are %d security profiles of %d bytes on this node already; remove those that are not used: %w", len(s.all), total, errdefs.ErrResourceExhausted)
	case len(next.Manifests) > mostProfileRefs:
		return fmt.Errorf("the security profile has %d references already; remove it first: %w", mostProfileRefs, errdefs.ErrResourceExhausted)
	}
	return s.writeLocked(d.String(), next)
}

// asked notes how a reference was written.
func (s *profileStore) asked(ref, written string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, k := range s.all {
		m, ok := k.Manifests[ref]
		if !ok || slices.Contains(m.Asked, written) || len(m.Asked) >= mostProfileRefs {
			continue
		}
		next := &keptProfile{Profile: k.Profile, Manifests: maps.Clone(k.Manifests)}
		m.Asked = append(slices.Clone(m.Asked), written)
		next.Manifests[ref] = m
		return s.writeLocked(d, next)
	}
	return nil
}

func (s *profileStore) writeLocked(d string, k *keptProfile) error {
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("keep the profile: %w", err)
	}
	if err := wholefile.Write(s.path(d), b, 0o600, -1, -1); err != nil {
		return fmt.Errorf("keep the profile: %w", err)
	}
	if err := wholefile.SyncDir(s.dir); err != nil {
		return fmt.Errorf("keep the profile: %w", err)
	}
	k.size = int64(len(b))
	s.all[d] = k
	return nil
}

func (s *profileStore) path(d string) string {
	return filepath.Join(s.dir, digest.Digest(d).Encoded()+".json")
}

func (s *profileStore) list() []Profile {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Profile, 0, len(s.all))
	for _, d := range slices.Sorted(maps.Keys(s.all)) {
		p := Profile{Digest: d, Size: s.all[d].size}
		for _, m := range s.all[d].Manifests {
			p.Refs = append(p.Refs, m.Asked...)
		}
		slices.Sort(p.Refs)
		out = append(out, p)
	}
	return out
}

func (s *profileStore) remove(d string) (removed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[d] == nil {
		return false, nil
	}
	if err := os.Remove(s.path(d)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	delete(s.all, d)
	return true, wholefile.SyncDir(s.dir)
}
