// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/images/image"
)

// Registry returns the registry of an image, with the credentials that the configuration has for
// it.
func (rs *registries) Registry(ref string) image.Registry {
	return rs.RegistryAs(ref, image.Credentials{})
}

// RegistryAs returns the registry of an image or a profile, with the credentials of a request.
func (rs *registries) RegistryAs(ref string, creds image.Credentials) image.Registry {
	return documents{func(ctx context.Context) (remotes.Resolver, error) {
		named, err := reference.ParseDockerRef(ref)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		return newResolver(rs.hosts(ctx, reference.Domain(named), creds, func(int) {})), nil
	}}
}

// documents reads manifests and blobs that are small enough to be read whole, and stores none of
// them. It implements image.Registry with a resolver of an image.
type documents struct {
	resolver func(ctx context.Context) (remotes.Resolver, error)
}

// Manifest implements image.Registry.
func (d documents) Manifest(ctx context.Context, ref string) ([]byte, error) {
	r, err := d.resolver(ctx)
	if err != nil {
		return nil, err
	}
	name, desc, err := r.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	return readBlob(ctx, r, name, desc)
}

// Blob implements image.Registry.
func (d documents) Blob(ctx context.Context, ref string, desc ocispec.Descriptor) ([]byte, error) {
	r, err := d.resolver(ctx)
	if err != nil {
		return nil, err
	}
	return readBlob(ctx, r, ref, desc)
}

// readBlob reads a small blob of an image whole.
func readBlob(ctx context.Context, from remotes.Resolver, ref string, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size < 0 || desc.Size > maxBlob {
		return nil, fmt.Errorf("%s has %d bytes, more than %d: %w", desc.Digest, desc.Size, maxBlob, errdefs.ErrInvalidArgument)
	}
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
	}
	fetcher, err := from.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	r, err := fetcher.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, desc.Size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) != desc.Size || desc.Digest.Algorithm().FromBytes(b) != desc.Digest {
		return nil, fmt.Errorf("the registry has sent %d bytes that are not %s of %d bytes: %w", len(b), desc.Digest, desc.Size, errdefs.ErrUnavailable)
	}
	return b, nil
}

// askingResolver is a resolver that asks whether to go on once it knows the target of a name. If
// the name has a digest, the registry has no say in the target.
type askingResolver struct {
	remotes.Resolver
	// resolved may be nil.
	resolved func(ctx context.Context, target ocispec.Descriptor, from image.Registry) error
}

// Resolve asks the registry for the target of a name.
func (r askingResolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	name, desc, err := r.Resolver.Resolve(ctx, ref)
	if err == nil {
		_, err = image.NewName(ref, desc, "")
	}
	if err == nil && r.resolved != nil {
		err = r.resolved(ctx, desc, documents{func(context.Context) (remotes.Resolver, error) { return r.Resolver, nil }})
	}
	return name, desc, err
}

// SetOptions passes on the options of the pull: containerd's client asks for this method.
func (r askingResolver) SetOptions(options ...transfer.ImageResolverOption) {
	if inner, ok := r.Resolver.(remotes.ResolverWithOptions); ok {
		inner.SetOptions(options...)
	}
}
