// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Caller is whom a pull is for.
type Caller struct {
	// Name is the caller's name in the list of transfers: a pod as NAMESPACE/NAME, or another word.
	// It may be "".
	Name string
	// Namespace is that of the pod; "" if the pull is for none.
	Namespace string
	// Itself is set if berth needs the image, and no pod asks for it: no policy is asked.
	Itself bool
	// Snapshotter is the one that the image is unpacked in; "" for that of most images.
	Snapshotter string
}

// Policy decides which images may be pulled: package policy. It waits for nothing.
type Policy interface {
	// Pull decides by the name of an image, before its registry is asked; namespace is as in
	// [Caller]. The pull then has to pass the returned Pass, unless that is nil. Pulls are shared
	// where they have to pass the same.
	Pull(namespace, name string) (Pass, error)
}

// Pass decides on a pull once the registry has resolved the name of the image, before any of it is
// fetched. It is comparable.
type Pass interface {
	Pass(ctx context.Context, name string, target ocispec.Descriptor, from Registry) error
}

// Registry reads small documents of the repository of an image.
type Registry interface {
	// Manifest reads the manifest that a reference stands for. ErrNotFound: there is none.
	Manifest(ctx context.Context, ref string) ([]byte, error)
	// Blob reads a blob of the repository of ref, and checks its digest.
	Blob(ctx context.Context, ref string, desc ocispec.Descriptor) ([]byte, error)
}

// judge asks the policy whether a pull may begin.
func (s *Service) judge(name string, who Caller) (Pass, error) {
	if s.cfg.Policy == nil || who.Itself {
		return nil, nil
	}
	return s.cfg.Policy.Pull(who.Namespace, name)
}

// refusal keeps of which kind an error of a policy is: it is none of the registry's or of
// containerd's.
func refusal(err error) error {
	if errdefs.IsPermissionDenied(err) {
		return Failure{Kind: "refused", Err: err}
	}
	return Failure{Kind: "unverified", Err: err}
}

// Registry returns the registry of an image, with the credentials that the configuration has for
// it.
func (s *Service) Registry(ref string) Registry { return redactedRegistry{s.backend.Registry(ref)} }

// redactedRegistry is a registry whose errors name no credentials.
type redactedRegistry struct{ from Registry }

// Manifest implements Registry.
func (r redactedRegistry) Manifest(ctx context.Context, ref string) ([]byte, error) {
	b, err := r.from.Manifest(ctx, ref)
	if err != nil {
		err = redact(err)
	}
	return b, err
}

// Blob implements Registry.
func (r redactedRegistry) Blob(ctx context.Context, ref string, desc ocispec.Descriptor) ([]byte, error) {
	b, err := r.from.Blob(ctx, ref, desc)
	if err != nil {
		err = redact(err)
	}
	return b, err
}
