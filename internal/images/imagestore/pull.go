// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"berth/internal/base/connection"
	"berth/internal/images/artifact"
	"berth/internal/images/image"
	"berth/internal/images/unpack"
)

// Puller pulls, imports and unpacks images.
type Puller struct {
	*core
	registries *registries
	names      *Names
	jobs       *jobs
	durability *Durability
	served     *served
	unpacker   *unpacker
	verifier   *Verifier
	askAgain   time.Duration // after which peers are asked again for what the registry sends
}

// checkArtifact looks at a manifest that a pull has fetched, before anything else of the image is.
// An artifact that cannot be laid out is refused; one that can be ends a pull that unpacks with
// errArtifact, and a checkpoint with errCheckpoint.
func (p *Puller) checkArtifact(ctx context.Context, desc ocispec.Descriptor, unpacks bool) error {
	m, err := manifestOf(ctx, p.content(), desc)
	if err != nil {
		return err
	}
	if !m.isArtifact() {
		if unpacks && m.checkpoint {
			return errCheckpoint
		}
		return nil
	}
	if _, err := artifact.Files(m.Manifest); err != nil {
		return err
	}
	if unpacks {
		return errArtifact
	}
	return nil
}

// pullArtifact fetches an artifact and lays its files out.
func (p *Puller) pullArtifact(ctx context.Context, ref string, creds image.Credentials, w image.Watch) (containerd.Image, error) {
	img, err := p.pull(ctx, ref, creds, w, fetchOnly, true)
	if err != nil {
		return nil, err
	}
	if w.Unpacking != nil {
		defer w.Unpacking()()
	}
	return img, p.unpacker.unpack(ctx, img.Metadata(), p.cfg.Snapshotter)
}

// Unpack makes the snapshots of what a name stood for in a snapshotter. Those that exist are kept.
func (p *Puller) Unpack(ctx context.Context, n image.Name, snapshotter string) error {
	return p.unpacker.unpack(connection.Namespaced(ctx), images.Image{Name: n.String(), Target: n.Target()}, snapshotter)
}

// Pull fetches and unpacks an image.
func (p *Puller) Pull(ctx context.Context, ref string, creds image.Credentials, w image.Watch) (st image.Stored, err error) {
	defer p.durability.making()()
	begun := time.Now()
	// What was fetched must still be there if the image has to be unpacked in another way.
	ctx, done, err := p.jobs.leaseFor(ctx, ref)
	if err != nil {
		return image.Stored{}, err
	}
	defer done()
	defer func() { p.jobs.hold(ctx, ref, err) }()
	ctx = unpack.ForImage(ctx, w.Waiting)
	if w.Unpacking != nil {
		ctx = context.WithValue(ctx, unpackingKey{}, w.Unpacking)
	}
	// A layer that is there and doubted may have to be unpacked again: then its blob is needed.
	all := p.durability.Doubts() > 0
	pull := func() (img containerd.Image, err error) {
		img, err = p.pull(ctx, ref, creds, w, p.cfg.MaxConcurrentUnpacks, all)
		if errors.Is(err, unpack.ErrNeedsParent) {
			p.cfg.Logger.Info("image is unpacked layer by layer", "name", ref, "reason", err)
			img, err = p.pull(ctx, ref, creds, w, 1, all)
		}
		if errors.Is(err, errGoneBelow) {
			img, err = p.pull(ctx, ref, creds, w, 1, all)
		}
		return img, err
	}
	resumed := p.resumes(ctx, &w)
	img, err := pull()
	if errdefs.IsFailedPrecondition(connection.Native(err)) && resumed() {
		img, err = pull()
	}
	if err == nil {
		err = p.verifier.mend(ctx, img.Metadata(), begun, false)
		if errdefs.IsNotFound(err) { // the blob of what is wrong
			all = true
			if img, err = pull(); err == nil {
				err = p.verifier.mend(ctx, img.Metadata(), begun, false)
			}
		}
	}
	if fetch := p.fetcherFor(err); fetch != nil {
		img, err = fetch(ctx, ref, creds, w)
		if errdefs.IsFailedPrecondition(connection.Native(err)) && resumed() {
			img, err = fetch(ctx, ref, creds, w)
		}
	}
	if err != nil {
		return image.Stored{}, failure(err)
	}
	if st, err = p.names.read(ctx, img.Metadata()); err == nil {
		err = p.names.name(ctx, st)
	}
	return st, err
}

// fetcherFor returns what pulls the image that a pull has stopped at with an error, since it is not
// to be unpacked; nil for another error.
func (p *Puller) fetcherFor(err error) func(context.Context, string, image.Credentials, image.Watch) (containerd.Image, error) {
	switch {
	case errors.Is(err, errArtifact):
		return p.pullArtifact
	case errors.Is(err, errCheckpoint):
		return func(ctx context.Context, ref string, creds image.Credentials, w image.Watch) (containerd.Image, error) {
			return p.pull(ctx, ref, creds, w, fetchOnly, true)
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
func (p *Puller) pull(ctx context.Context, ref string, creds image.Credentials, w image.Watch, unpacks int, all bool) (containerd.Image, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	unpack := []containerd.UnpackOpt{encryption.WithUnpackConfigApplyOpts(p.unpacker.keys.decrypting)}
	if all {
		unpack = append(unpack, containerd.WithUnpackFetchAllContent())
	}
	if unpacks > 1 {
		// The limit is that of one image: a layer counts while its bytes are waited for, and one
		// pull must not wait for the registry of another. How many are unpacked in all is bounded
		// by unpack.Applier.
		unpack = append(unpack, containerd.WithUnpackLimiter(semaphore.NewWeighted(int64(unpacks))))
	}
	resolver := askingResolver{newResolver(p.registries.hosts(ctx, reference.Domain(named), creds, w.Bytes)), w.Resolved}
	var opts []containerd.RemoteOpt
	if unpacks != fetchOnly {
		opts = append(p.jobs.keeping(), containerd.WithPullUnpack, containerd.WithUnpackOpts(unpack))
	}
	handlers := []images.Handler{images.HandlerFunc(checkSize)}
	shared := p.served.share(repositoryOf(ref))
	defer shared.over()
	if p.cfg.Peers != nil {
		handlers = append(handlers, peerFetch{
			core:       p.core,
			askAgain:   p.askAgain,
			repository: shared.repository,
			registry:   func(ctx context.Context) (remotes.Fetcher, error) { return resolver.Fetcher(ctx, named.String()) },
			progress:   w.Bytes,
		})
	}
	return p.unpacker.containerd().Pull(ctx, ref, append(opts,
		containerd.WithResolver(resolver),
		containerd.WithImageHandler(images.Handlers(handlers...)),
		containerd.WithImageHandlerWrapper(p.reporting(ref, w.Needs, shared, unpacks != fetchOnly)),
		containerd.WithPullSnapshotter(p.cfg.Snapshotter),
		containerd.WithPullLabel(labelManaged, "managed"),
		containerd.WithMaxConcurrentDownloads(p.cfg.MaxConcurrentDownloads),
		containerd.WithPlatformMatcher(platforms.Default()))...)
}

// fileMediaType is what a file of an artifact is to containerd's client, which takes each blob of
// the common type application/octet-stream for the configuration of an early Docker image, and
// notes that from several goroutines without a lock.
const fileMediaType = "application/x-octet-stream"

// reporting reports what an image consists of, as the handlers of a pull find it out, and stops at
// the manifest of an artifact: see checkArtifact. They run in goroutines of containerd's client,
// where a panic over the image name would end berth.
func (p *Puller) reporting(name string, needs func([]image.Blob), shared *sharing, unpacks bool) func(images.Handler) images.Handler {
	return func(h images.Handler) images.Handler {
		return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			children, err := image.Contain(p.cfg.Logger, p.cfg.Panicked, name, func() ([]ocispec.Descriptor, error) {
				if !unpacks && desc.MediaType == docker.LegacyConfigMediaType {
					desc.MediaType = fileMediaType
				}
				children, err := h.Handle(ctx, desc)
				switch {
				case err != nil:
				case images.IsManifestType(desc.MediaType):
					err = p.checkArtifact(ctx, desc, unpacks)
				case images.IsConfigType(desc.MediaType) && unpacks:
					err = checkConfig(ctx, p.content(), desc)
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

// resumes notes what has been fetched of blobs in part before a pull, and which blobs w learns that
// the pull needs. It returns what says whether there was a beginning of one of them: if the pull
// fails over the digest of a blob, that beginning may be what is wrong, as after a power cut, and
// not the registry. It is removed then ([blobWriter]), and the pull can be repeated.
func (p *Puller) resumes(ctx context.Context, w *image.Watch) func() bool {
	before := map[string]bool{} // blobs
	all, err := p.client.ContentStore().ListStatuses(ctx)
	if err != nil {
		return func() bool { return false } // the next pull begins anew
	}
	for _, st := range all {
		if st.Offset > 0 {
			before[blobOf(st.Ref)] = true
		}
	}
	var found atomic.Bool
	needs := w.Needs
	w.Needs = func(blobs []image.Blob) {
		if slices.ContainsFunc(blobs, func(b image.Blob) bool { return before[b.Digest] }) {
			found.Store(true)
		}
		needs(blobs)
	}
	return found.Load
}
