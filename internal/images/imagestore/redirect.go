// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxRedirects is how many times in a row a server may send a request elsewhere, as in net/http.
const maxRedirects = 10

// harmless are the headers that go along when a server sends a request to another one. Any other
// may be a credential: net/http takes out those that it knows, and none if only the port or the
// scheme differs, and a hosts.toml may set others.
var harmless = []string{"Accept", "Accept-Encoding", "Accept-Language", "Range", "User-Agent"}

// redirect decides on a redirect of a registry, a mirror or a token server. Only a request to the
// very server that it was made for, by scheme, name and port, has credentials. A request that has
// them in its body goes nowhere else.
func redirect(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	if origin(r.URL) == origin(via[0].URL) {
		// A chain that has left the server does not bring its credentials back.
		return nil
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return fmt.Errorf("%s sends a request with credentials on to %s, which berth does not follow: %w",
			origin(via[0].URL), origin(r.URL), errdefs.ErrPermissionDenied)
	}
	for name := range r.Header {
		if !slices.Contains(harmless, name) {
			delete(r.Header, name) // Del knows no name but those that are written as net/http writes them
		}
	}
	return nil
}

// origin returns the scheme, the name and the port of a server.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" && u.Scheme == "https" {
		port = "443"
	}
	if port == "" {
		port = "80"
	}
	return u.Scheme + "://" + u.Hostname() + ":" + port
}

// ownResolver is a resolver whose fetchers get blobs from the registry and its mirrors alone. A
// manifest may name other servers for a layer, any that this node reaches.
type ownResolver struct {
	remotes.Resolver
	ranges *ranges // nil: no blob is fetched in pieces
}

func newResolver(hosts docker.RegistryHosts) ownResolver {
	return ownResolver{Resolver: docker.NewResolver(docker.ResolverOptions{Hosts: hosts})}
}

// Fetcher returns the fetcher of the blobs of an image.
func (r ownResolver) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	f, err := r.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		elsewhere := len(desc.URLs) > 0
		desc.URLs = nil
		rc, err := r.ranges.fetch(ctx, desc, func(ctx context.Context) (io.ReadCloser, error) { return f.Fetch(ctx, desc) })
		if err != nil || !elsewhere {
			return rc, err
		}
		return foreign{rc, desc}, nil
	}), nil
}

// SetOptions passes on the options of the pull: containerd's client asks for this method.
func (r ownResolver) SetOptions(options ...transfer.ImageResolverOption) {
	if inner, ok := r.Resolver.(remotes.ResolverWithOptions); ok {
		inner.SetOptions(options...)
	}
}

// foreign is a layer for which the manifest names other servers. Its bytes are asked for when they
// are read.
type foreign struct {
	io.ReadCloser
	desc ocispec.Descriptor
}

// Read reads the next bytes.
func (f foreign) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && errdefs.IsNotFound(err) {
		err = fmt.Errorf("layer %s is not in the registry, and berth does not fetch from the urls that its manifest names; push it to the registry: %w", f.desc.Digest, err)
	}
	return n, err
}

// Seek is asked for when a blob was begun before.
func (f foreign) Seek(offset int64, whence int) (int64, error) {
	s, ok := f.ReadCloser.(io.Seeker)
	if !ok {
		return 0, fmt.Errorf("seek in layer %s: %w", f.desc.Digest, errors.ErrUnsupported)
	}
	return s.Seek(offset, whence)
}
