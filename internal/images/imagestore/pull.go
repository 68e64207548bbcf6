// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	dockerconfig "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"berth/internal/base/connection"
	"berth/internal/images/image"
	"berth/internal/images/unpack"
)

// Pull fetches and unpacks an image.
func (i *Store) Pull(ctx context.Context, ref string, creds image.Credentials, w image.Watch) (st image.Stored, err error) {
	defer i.making()()
	begun := time.Now()
	// What was fetched must still be there if the image has to be unpacked in another way.
	ctx, done, err := i.leaseFor(ctx, ref)
	if err != nil {
		return image.Stored{}, err
	}
	defer done()
	defer func() { i.hold(ctx, ref, err) }()
	ctx = unpack.ForImage(ctx, w.Waiting)
	if w.Unpacking != nil {
		ctx = context.WithValue(ctx, unpackingKey{}, w.Unpacking)
	}
	// A layer that is there and doubted may have to be unpacked again: then its blob is needed.
	all := i.Doubts() > 0
	pull := func() (img containerd.Image, err error) {
		img, err = i.pull(ctx, ref, creds, w, i.cfg.MaxConcurrentUnpacks, all)
		if errors.Is(err, unpack.ErrNeedsParent) {
			i.cfg.Logger.Info("image is unpacked layer by layer", "name", ref, "reason", err)
			img, err = i.pull(ctx, ref, creds, w, 1, all)
		}
		if errors.Is(err, errGoneBelow) {
			img, err = i.pull(ctx, ref, creds, w, 1, all)
		}
		return img, err
	}
	resumed := i.resumes(ctx, &w)
	img, err := pull()
	if errdefs.IsFailedPrecondition(connection.Native(err)) && resumed() {
		img, err = pull()
	}
	if err == nil {
		err = i.mend(ctx, img.Metadata(), begun, false)
		if errdefs.IsNotFound(err) { // the blob of what is wrong
			all = true
			if img, err = pull(); err == nil {
				err = i.mend(ctx, img.Metadata(), begun, false)
			}
		}
	}
	if fetch := i.fetcherFor(err); fetch != nil {
		img, err = fetch(ctx, ref, creds, w)
		if errdefs.IsFailedPrecondition(connection.Native(err)) && resumed() {
			img, err = fetch(ctx, ref, creds, w)
		}
	}
	if err != nil {
		return image.Stored{}, failure(err)
	}
	if st, err = i.read(ctx, img.Metadata()); err == nil {
		err = i.name(ctx, st)
	}
	return st, err
}

// fetcherFor returns what pulls the image that a pull has stopped at with an error, since it is not
// to be unpacked; nil for another error.
func (i *Store) fetcherFor(err error) func(context.Context, string, image.Credentials, image.Watch) (containerd.Image, error) {
	switch {
	case errors.Is(err, errArtifact):
		return i.pullArtifact
	case errors.Is(err, errCheckpoint):
		return func(ctx context.Context, ref string, creds image.Credentials, w image.Watch) (containerd.Image, error) {
			return i.pull(ctx, ref, creds, w, fetchOnly, true)
		}
	}
	return nil
}

// fetchOnly is no number of layers to be unpacked at the same time: nothing is unpacked.
const fetchOnly = -1

// pull fetches an image and unpacks that many of its layers at the same time, or none with
// fetchOnly. With all set, it also fetches the blobs of layers that are unpacked already. An
// artifact has no layers to be unpacked, and that of a checkpoint is read where it is: errArtifact
// and errCheckpoint say so before any of them is fetched.
func (i *Store) pull(ctx context.Context, ref string, creds image.Credentials, w image.Watch, unpacks int, all bool) (containerd.Image, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	unpack := []containerd.UnpackOpt{encryption.WithUnpackConfigApplyOpts(i.decrypting)}
	if all {
		unpack = append(unpack, containerd.WithUnpackFetchAllContent())
	}
	if unpacks > 1 {
		// The limit is that of one image: a layer counts while its bytes are waited for, and one
		// pull must not wait for the registry of another. How many are unpacked in all is bounded
		// by unpack.Applier.
		unpack = append(unpack, containerd.WithUnpackLimiter(semaphore.NewWeighted(int64(unpacks))))
	}
	resolver := askingResolver{newResolver(i.hosts(ctx, reference.Domain(named), creds, w.Bytes)), w.Resolved}
	var opts []containerd.RemoteOpt
	if unpacks != fetchOnly {
		opts = append(i.keeping(), containerd.WithPullUnpack, containerd.WithUnpackOpts(unpack))
	}
	handlers := []images.Handler{images.HandlerFunc(checkSize)}
	shared := i.served.share(repositoryOf(ref))
	defer shared.over()
	if i.cfg.Peers != nil {
		handlers = append(handlers, peerFetch{
			store:      i,
			repository: shared.repository,
			registry:   func(ctx context.Context) (remotes.Fetcher, error) { return resolver.Fetcher(ctx, named.String()) },
			progress:   w.Bytes,
		})
	}
	return i.bounded().Pull(ctx, ref, append(opts,
		containerd.WithResolver(resolver),
		containerd.WithImageHandler(images.Handlers(handlers...)),
		containerd.WithImageHandlerWrapper(i.reporting(ref, w.Needs, shared, unpacks != fetchOnly)),
		containerd.WithPullSnapshotter(i.cfg.Snapshotter),
		containerd.WithPullLabel(labelManaged, "managed"),
		containerd.WithMaxConcurrentDownloads(i.cfg.MaxConcurrentDownloads),
		containerd.WithPlatformMatcher(platforms.Default()))...)
}

// fileMediaType is what a file of an artifact is to containerd's client, which takes each blob of
// the common type application/octet-stream for the configuration of an early Docker image, and
// notes that from several goroutines without a lock.
const fileMediaType = "application/x-octet-stream"

// reporting reports what an image consists of, as the handlers of a pull find it out, and stops at
// the manifest of an artifact: see checkArtifact. They run in goroutines of containerd's client,
// where a panic over the image name would end berth.
func (i *Store) reporting(name string, needs func([]image.Blob), shared *sharing, unpacks bool) func(images.Handler) images.Handler {
	return func(h images.Handler) images.Handler {
		return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			children, err := image.Contain(i.cfg.Logger, i.cfg.Panicked, name, func() ([]ocispec.Descriptor, error) {
				if !unpacks && desc.MediaType == docker.LegacyConfigMediaType {
					desc.MediaType = fileMediaType
				}
				children, err := h.Handle(ctx, desc)
				switch {
				case err != nil:
				case images.IsManifestType(desc.MediaType):
					err = i.checkArtifact(ctx, desc, unpacks)
				case images.IsConfigType(desc.MediaType) && unpacks:
					err = checkConfig(ctx, i.bounded().ContentStore(), desc)
				}
				return children, err
			})
			if err == nil {
				blobs := []image.Blob{{Digest: desc.Digest.String(), Size: desc.Size}}
				for _, c := range children {
					blobs = append(blobs, image.Blob{Digest: c.Digest.String(), Size: c.Size})
				}
				needs(blobs)
				shared.add(desc)
				shared.add(children...)
			}
			return children, err
		})
	}
}

// Fetched returns how many bytes of each blob are on this node.
func (i *Store) Fetched(ctx context.Context, blobs []image.Blob) (map[string]int64, error) {
	ctx = connection.Namespaced(ctx)
	cs := i.client.ContentStore()
	coming, err := cs.ListStatuses(ctx)
	if err != nil {
		return nil, connection.Native(err)
	}
	offset := map[string]int64{}
	for _, st := range coming {
		offset[blobOf(st.Ref)] = st.Offset
	}
	here := map[string]int64{}
	for _, b := range blobs {
		if n, ok := offset[b.Digest]; ok {
			here[b.Digest] = n
			continue
		}
		switch _, err := cs.Info(ctx, digest.Digest(b.Digest)); {
		case err == nil:
			here[b.Digest] = b.Size
		case !errdefs.IsNotFound(connection.Native(err)):
			return nil, connection.Native(err)
		}
	}
	return here, nil
}

// checkSize refuses manifests and configurations that are too large before they are fetched.
func checkSize(_ context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	what := ""
	switch {
	case images.IsManifestType(desc.MediaType):
		what = "manifest"
	case images.IsIndexType(desc.MediaType):
		what = "index"
	case images.IsConfigType(desc.MediaType):
		what = "configuration"
	}
	if what != "" && desc.Size > maxBlob {
		return nil, fmt.Errorf("%s %s has %d bytes, more than %d: %w", what, desc.Digest, desc.Size, maxBlob, errdefs.ErrInvalidArgument)
	}
	return nil, nil
}

// hosts configures registries from certs.d directories, if there are any. Only the image's own
// registry gets the credentials of the request: a manifest that names other hosts gets nothing for
// them. A mirror gets those that the configuration has for it.
func (i *Store) hosts(ctx context.Context, registry string, creds image.Credentials, progress func(n int)) docker.RegistryHosts {
	own := func(host string) bool {
		return host == registry || registry == "docker.io" && host == "registry-1.docker.io"
	}
	o := dockerconfig.HostOptions{
		Credentials: func(host string) (string, string, error) {
			switch {
			case !own(host) || creds == (image.Credentials{}):
				c := i.configured(host)
				return c.Username, c.Password, nil
			case creds.IdentityToken != "":
				return "", creds.IdentityToken, nil
			default:
				return creds.Username, creds.Password, nil
			}
		},
		UpdateClient: func(c *http.Client) error {
			c.Transport, c.CheckRedirect = counting{c.Transport, progress}, redirect
			return nil
		},
	}
	if i.cfg.RegistryDir != "" {
		o.HostDir = dockerconfig.HostDirFromRoot(i.cfg.RegistryDir)
	}
	configured := dockerconfig.ConfigureHosts(ctx, o)
	if creds.RegistryToken == "" {
		return configured
	}
	return func(host string) ([]docker.RegistryHost, error) {
		all, err := configured(host)
		for n := range all {
			if own(all[n].Host) {
				all[n].Authorizer = bearer{host: all[n].Host, token: creds.RegistryToken}
			}
		}
		return all, err
	}
}

// configured returns the credentials that the configuration has for a host. Only registries that an
// image is pulled from, and their configured mirrors, are asked about.
func (i *Store) configured(host string) image.Credentials {
	byHost := i.cfg.Credentials
	if now := i.credentials.Load(); now != nil {
		byHost = *now
	}
	if c, ok := byHost[host]; ok || host != "registry-1.docker.io" {
		return c
	}
	return byHost["docker.io"]
}

// bearer authorizes requests to one host with a token that was given for it. Other than
// containerd's authorizer it never sends the token to the token server that the registry names in
// its challenge.
type bearer struct{ host, token string }

// Authorize adds the token to a request, if it goes to the token's host.
func (b bearer) Authorize(_ context.Context, r *http.Request) error {
	if r.URL.Host == b.host {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return nil
}

// AddResponses is called when the registry refuses: no other token can be tried.
func (b bearer) AddResponses(context.Context, []*http.Response) error {
	return errdefs.ErrNotImplemented
}

// counting reports the bytes that come, and answers as 0 bytes. The rest of a blob can be asked for
// any number of times, and its answers are not reported: bytes have to come.
type counting struct {
	next     http.RoundTripper
	progress func(n int)
}

// RoundTrip carries out one request.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	next := c.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(r)
	if err == nil {
		if r.Header.Get("Range") == "" {
			c.progress(0)
		}
		resp.Body = countedBody{resp.Body, c.progress}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	progress func(n int)
}

// Read reads the next bytes.
func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.progress(n)
	}
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF { //nolint:errorlint // containerd compares those two so
		err = image.Failure{Kind: "unreachable", Err: err}
	}
	return n, err
}
