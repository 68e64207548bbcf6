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

// configuredRegistry is the registry of an image.
type configuredRegistry struct {
	registries *registries
	ref        string
}

func (r *configuredRegistry) documents(ctx context.Context) (documents, error) {
	named, err := reference.ParseDockerRef(r.ref)
	if err != nil {
		return documents{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	hosts := r.registries.hosts(ctx, reference.Domain(named), image.Credentials{}, func(int) {})
	return documents{newResolver(hosts)}, nil
}

// Manifest implements image.Registry.
func (r *configuredRegistry) Manifest(ctx context.Context, ref string) ([]byte, error) {
	d, err := r.documents(ctx)
	if err != nil {
		return nil, err
	}
	return d.Manifest(ctx, ref)
}

// Blob implements image.Registry.
func (r *configuredRegistry) Blob(ctx context.Context, ref string, desc ocispec.Descriptor) ([]byte, error) {
	d, err := r.documents(ctx)
	if err != nil {
		return nil, err
	}
	return d.Blob(ctx, ref, desc)
}

// documents reads what is small enough to be read whole, with a resolver of an image. Nothing of it
// is stored.
type documents struct{ resolver remotes.Resolver }

// Manifest implements image.Registry.
func (d documents) Manifest(ctx context.Context, ref string) ([]byte, error) {
	name, desc, err := d.resolver.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	return d.Blob(ctx, name, desc)
}

// Blob implements image.Registry.
func (d documents) Blob(ctx context.Context, ref string, desc ocispec.Descriptor) ([]byte, error) {
	if desc.Size < 0 || desc.Size > maxBlob {
		return nil, fmt.Errorf("%s has %d bytes, more than %d: %w", desc.Digest, desc.Size, maxBlob, errdefs.ErrInvalidArgument)
	}
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
	}
	fetcher, err := d.resolver.Fetcher(ctx, ref)
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

// askingResolver is a resolver that asks whether to go on once it knows what a name stands for. A
// registry has no say in what a digest stands for.
type askingResolver struct {
	remotes.Resolver
	// resolved may be nil.
	resolved func(ctx context.Context, target ocispec.Descriptor, from image.Registry) error
}

// Resolve asks the registry what a name stands for.
func (r askingResolver) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	name, desc, err := r.Resolver.Resolve(ctx, ref)
	if err == nil {
		_, err = image.NewName(ref, desc, "")
	}
	if err == nil && r.resolved != nil {
		err = r.resolved(ctx, desc, documents{r.Resolver})
	}
	return name, desc, err
}

// SetOptions passes on what the pull is to be like: containerd's client asks for this method.
func (r askingResolver) SetOptions(options ...transfer.ImageResolverOption) {
	if inner, ok := r.Resolver.(remotes.ResolverWithOptions); ok {
		inner.SetOptions(options...)
	}
}
