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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
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

// profilesIn returns the directory of the security profiles.
func profilesIn(root string) string { return filepath.Join(root, "profiles") }

// openProfiles opens the store of security profiles, which pulls them.
func openProfiles(b base, stored *imagestore.Store, guard *policy.Guard) *image.Profiles {
	p := image.OpenProfiles(image.ProfileConfig{
		Dir:      profilesIn(b.cfg.Root),
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

// knownProfiles are the security profiles, whose pulls and removals are in the history. A pull that
// asked no registry is not: a kubelet makes it before each start of a pod.
type knownProfiles struct {
	*image.Profiles
	core *Core
}

// Pull implements cri.Profiles.
func (k knownProfiles) Pull(ctx context.Context, ref string, auth *runtimeapi.AuthConfig, who image.Caller) (cached bool, err error) {
	began := time.Now()
	cached, err = k.Profiles.Pull(ctx, ref, auth, who)
	switch {
	case err != nil:
		k.note(who, event.ProfileNotPulled{Profile: ref, Took: time.Since(began), Err: err.Error()})
	case !cached:
		k.note(who, event.ProfilePulled{Profile: ref, Took: time.Since(began)})
	}
	return cached, err
}

func (k knownProfiles) note(who image.Caller, e event.Event) {
	k.core.obs.Note(podCalled(k.core.Pods, who.Name), e)
}

// Remove implements cri.Profiles.
func (k knownProfiles) Remove(ctx context.Context, digest string) error {
	removed, err := k.Profiles.Remove(digest)
	if removed {
		k.core.obs.Note("", event.ProfileRemoved{By: event.ClientOf(ctx), Profile: digest})
	}
	return err
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
