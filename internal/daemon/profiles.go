// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"path/filepath"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/wholefile"
	"berth/internal/host/spec"
	"berth/internal/images/image"
	"berth/internal/images/imagestore"
	"berth/internal/images/policy"
	"berth/internal/serve/join"
)

// Bounds of a security profile from a registry, so that its proof takes little time and memory.
const (
	maxProfileBytes = 1 << 20
	maxProfileRules = 128
)

// openProfiles opens the store of security profiles, which pulls them.
func openProfiles(b base, stored *imagestore.Store, guard *policy.Guard) *image.Profiles {
	p := image.OpenProfiles(image.ProfileConfig{
		Dir:      filepath.Join(b.cfg.Root, "profiles"),
		MaxBytes: maxProfileBytes,
		Check:    func(profile []byte) error { return spec.CheckPulled(profile, maxProfileRules) },
		Registry: stored.RegistryAs,
		Policy:   pullPolicy{guard},
		Again: func(ctx context.Context, namespace, ref string, target ocispec.Descriptor, from func(string) image.Registry) error {
			return guard.Create(ctx, namespace, policy.Image{
				Asked: ref,
				Names: []policy.Named{{Name: ref, Target: target}},
			}, func(ref string) policy.Registry { return from(ref) })
		},
		Timeout: time.Duration(b.cfg.Image.PullTimeout),
		Logger:  b.log.Logger,
	})
	b.undo.add(func() error { p.Close(); return nil })
	return p
}

// mostProofs is how many proofs are remembered; a node has few pairs of profiles.
const mostProofs = 256

// proved returns a function that proves that a profile is the intersection of two, each once.
func proved(libexec string) func(base, own, both *specs.LinuxSeccomp) error {
	var mu sync.Mutex
	known := map[string]bool{}
	return func(base, own, both *specs.LinuxSeccomp) error {
		text, err := json.Marshal([]*specs.LinuxSeccomp{base, own, both})
		if err != nil {
			return err
		}
		sum := wholefile.Sum(text)
		mu.Lock()
		has := known[sum]
		mu.Unlock()
		if has {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := join.Prove(ctx, libexec, base, own, both); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if len(known) >= mostProofs {
			clear(known)
		}
		known[sum] = true
		return nil
	}
}
