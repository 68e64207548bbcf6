// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SeccompProfile is the media type of seccomp profiles in registries (KEP-6061).
const SeccompProfile = "application/vnd.cncf.seccomp-profile.config.v1+json"

// The errors of a pull of a profile that CRI has a word for.
var (
	// ErrProfileInvalid means that the request or the artifact is wrong, and will be.
	ErrProfileInvalid = errors.New("not a security profile that can be used")
	// ErrRegistry means that the registry did not send the manifest or the blob.
	ErrRegistry = errors.New("the registry did not give the profile")
)

// ProfileConfig has the settings and ports of [Profiles].
type ProfileConfig struct {
	Dir      string // of the profiles that are kept
	MaxBytes int64  // of a profile
	// Check returns an error if a profile cannot be used.
	Check func(profile []byte) error
	// Registry returns the registry of a reference, with credentials. Nothing is asked yet.
	Registry func(ref string, creds Credentials) Registry
	// Policy decides as for images; nil: all may be pulled.
	Policy Policy
	// Again decides about a profile that is here, as the policy does about an image that a container
	// is to be made from: it asks the registry for signatures that a rule wants and that were not
	// verified before. It may be nil.
	Again   func(ctx context.Context, namespace, ref string, target ocispec.Descriptor, from func(ref string) Registry) error
	Timeout time.Duration // of a pull
	Logger  *slog.Logger
}

// Profiles are security profiles from registries. They are not images, and no list or collection of
// images has them. Its methods may be called from any goroutine.
type Profiles struct {
	cfg   ProfileConfig
	kept  *profileStore
	pulls flights[profileKey, bool]
}

type profileKey struct {
	ref       string
	creds     Credentials
	namespace string
}

// OpenProfiles reads the profiles that are kept. A damaged one is named in the log, and removed: it
// has to be pulled again.
func OpenProfiles(cfg ProfileConfig) *Profiles {
	return &Profiles{cfg: cfg, kept: openProfileStore(cfg.Dir, cfg.Logger)}
}

// Close ends the pulls in flight, and waits for them.
func (p *Profiles) Close() { p.pulls.end() }

// exactly returns the complete form of a reference with a digest.
func exactly(ref string) (reference.Canonical, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("reference %q: %w: %w: %w", ref, err, ErrProfileInvalid, errdefs.ErrInvalidArgument)
	}
	exact, ok := named.(reference.Canonical)
	if !ok {
		return nil, fmt.Errorf("reference %q has no digest, which that of a profile needs: %w: %w", ref, ErrProfileInvalid, errdefs.ErrInvalidArgument)
	}
	return exact, nil
}

// Pull makes sure that a profile is kept, and reports whether no registry was asked for that. The
// error is [ErrProfileInvalid], [ErrRegistry], or that of the policy.
func (p *Profiles) Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig, who Caller) (cached bool, err error) {
	exact, err := exactly(ref)
	if err != nil {
		return false, err
	}
	creds, err := credentials(exact.String(), auth)
	if err != nil {
		return false, fmt.Errorf("%w: %w", err, ErrProfileInvalid)
	}
	key := profileKey{exact.String(), creds, who.Namespace}
	cached, err = p.pulls.join(ctx, key, who.Name, func(ctx context.Context, _ context.CancelCauseFunc) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
		defer cancel()
		cached, err := p.pull(ctx, exact, key)
		return cached, because(ctx, err)
	})
	if err == nil {
		err = p.kept.asked(exact.String(), ref)
	}
	if err != nil {
		return false, fmt.Errorf("pull profile %s: %w", exact, redact(err))
	}
	return cached, nil
}

func (p *Profiles) pull(ctx context.Context, ref reference.Canonical, key profileKey) (cached bool, err error) {
	var asked atomic.Bool
	from := func(string) Registry {
		return countedRegistry{redactedRegistry{p.cfg.Registry(key.ref, key.creds)}, &asked}
	}
	if manifest, _, ok := p.kept.get(key.ref); ok {
		if p.cfg.Again != nil {
			err = p.cfg.Again(ctx, key.namespace, key.ref, descriptorOf(ref, manifest), from)
		}
		return !asked.Load(), err
	}
	var pass Pass
	if p.cfg.Policy != nil {
		if pass, err = p.cfg.Policy.Pull(key.namespace, key.ref); err != nil {
			return false, err
		}
	}
	registry := from(key.ref)
	manifest, err := registry.Manifest(ctx, key.ref)
	if err != nil {
		return false, fmt.Errorf("read the manifest: %w: %w", err, ErrRegistry)
	}
	if ref.Digest().Algorithm().FromBytes(manifest) != ref.Digest() {
		return false, fmt.Errorf("the registry has sent a manifest that is not %s: %w: %w", ref.Digest(), ErrRegistry, errdefs.ErrUnavailable)
	}
	layer, err := p.layerOf(manifest)
	if err == nil && pass != nil {
		err = pass.Pass(ctx, key.ref, descriptorOf(ref, manifest), registry)
	}
	if err != nil {
		return false, err
	}
	profile, err := registry.Blob(ctx, key.ref, layer)
	if err != nil {
		return false, fmt.Errorf("read the profile: %w: %w", err, ErrRegistry)
	}
	if err := p.cfg.Check(profile); err != nil {
		return false, fmt.Errorf("%w: %w", err, ErrProfileInvalid)
	}
	return false, p.kept.put(key.ref, manifest, profile)
}

func descriptorOf(ref reference.Canonical, manifest []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: ref.Digest(), Size: int64(len(manifest))}
}

// layerOf returns the layer of a manifest that holds a profile. The media type has to be that of
// seccomp profiles wherever the manifest names one; the configuration may be the empty one then.
func (p *Profiles) layerOf(manifest []byte) (ocispec.Descriptor, error) {
	var m ocispec.Manifest
	bad := func(format string, a ...any) (ocispec.Descriptor, error) {
		return ocispec.Descriptor{}, fmt.Errorf(format+": %w: %w", append(a, ErrProfileInvalid, errdefs.ErrInvalidArgument)...)
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return bad("its manifest cannot be read: %w", err)
	}
	empty := m.Config.MediaType == ocispec.MediaTypeEmptyJSON
	switch {
	case m.MediaType != "" && m.MediaType != ocispec.MediaTypeImageManifest:
		return bad("it is of the media type %q, and not one manifest", m.MediaType)
	case m.ArtifactType != "" && m.ArtifactType != SeccompProfile, m.ArtifactType == "" && empty:
		return bad("its artifactType is %q, and not %s", m.ArtifactType, SeccompProfile)
	case m.Config.MediaType != SeccompProfile && !empty:
		return bad("the media type of its configuration is %q, and not %s", m.Config.MediaType, SeccompProfile)
	case len(m.Layers) != 1:
		return bad("it has %d layers, and not one", len(m.Layers))
	case m.Layers[0].Size > p.cfg.MaxBytes || m.Layers[0].Size < 0:
		return bad("it has %d bytes, more than %d", m.Layers[0].Size, p.cfg.MaxBytes)
	}
	if err := m.Layers[0].Digest.Validate(); err != nil {
		return bad("the digest %q of its layer: %w", m.Layers[0].Digest, err)
	}
	return m.Layers[0], nil
}

// countedRegistry notes that a registry was asked.
type countedRegistry struct {
	Registry
	asked *atomic.Bool
}

// Manifest implements Registry.
func (r countedRegistry) Manifest(ctx context.Context, ref string) ([]byte, error) {
	r.asked.Store(true)
	return r.Registry.Manifest(ctx, ref)
}

// Blob implements Registry.
func (r countedRegistry) Blob(ctx context.Context, ref string, desc ocispec.Descriptor) ([]byte, error) {
	r.asked.Store(true)
	return r.Registry.Blob(ctx, ref, desc)
}

// Profile is one that is kept.
type Profile struct {
	Digest string
	Refs   []string // as they were asked for
	Size   int64    // on the disk
}

// List lists the profiles that are kept, by digest.
func (p *Profiles) List() []Profile { return p.kept.list() }

// Verify compares the file of a profile, which is named by its digest or a reference, with the
// profile, and writes it again if repair is set. The error is NotFound if it is not kept.
func (p *Profiles) Verify(name string, repair bool) (Part, error) {
	d, ok := p.kept.find(name)
	if !ok {
		return Part{}, fmt.Errorf("verify profile %s: %w", name, errdefs.ErrNotFound)
	}
	return p.kept.verify(d, repair), nil
}

// Remove removes a profile by its digest, and reports whether there was one.
func (p *Profiles) Remove(digest string) (removed bool, err error) {
	if removed, err = p.kept.remove(digest); err != nil {
		return removed, fmt.Errorf("remove profile %s: %w", digest, err)
	}
	return removed, nil
}

// Read returns a profile that is kept. It never asks a registry.
func (p *Profiles) Read(ref string) ([]byte, error) {
	exact, err := exactly(ref)
	if err != nil {
		return nil, err
	}
	_, profile, ok := p.kept.get(exact.String())
	if !ok {
		return nil, fmt.Errorf("profile %s is not on this node; it has to be pulled first (PullSecurityProfile): %w", ref, errdefs.ErrNotFound)
	}
	return profile, nil
}
