// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
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
	"github.com/containerd/containerd/v2/pkg/snapshotters"
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
	askAgain   time.Duration // after which peers are asked again for a blob that the registry sends
}

// Unpack makes the snapshots of a name's image in a snapshotter. Those that exist are kept.
func (p *Puller) Unpack(ctx context.Context, n image.Name, snapshotter string) error {
	img := images.Image{Name: n.String(), Target: n.Target()}
	return p.unpacker.unpack(connection.Namespaced(ctx), img, snapshotter)
}

// Pull fetches an image and unpacks it in a snapshotter, that of most images if it is "", and then
// gives it its names. sink may be nil.
func (p *Puller) Pull(ctx context.Context, ref string, creds image.Credentials, snapshotter string, sink image.Sink) (st image.Stored, err error) {
	if sink == nil {
		sink = unseen{}
	}
	defer p.durability.making()()
	// The lease keeps the fetched blobs if the image has to be unpacked in another way.
	ctx, done, err := p.jobs.lease(ctx, ref)
	if err != nil {
		return image.Stored{}, err
	}
	defer done()
	defer func() { p.jobs.hold(ctx, ref, err) }()
	ctx = unpack.ForImage(ctx, waits(sink))
	img, err := (&pulling{
		Puller:      p,
		Sink:        sink,
		ref:         ref,
		creds:       creds,
		snapshotter: cmp.Or(snapshotter, p.cfg.Snapshotter),
		since:       time.Now(),
		arriving:    p.newArriving(ctx),
		begun:       begunBlobs(ctx, p.client),
		attempt: attempt{
			at: stageBeside,
			// A layer that is here and doubted may have to be unpacked again: then its blob is
			// needed.
			all: p.durability.Doubts() > 0,
		},
	}).run(ctx)
	if err != nil {
		return image.Stored{}, failure(err)
	}
	if st, err = p.names.read(ctx, img); err == nil {
		err = p.names.name(ctx, st)
	}
	return st, err
}

// waits reports the layers that wait for their turn to a sink.
func waits(sink image.Sink) func(waits bool) {
	return func(waits bool) {
		if waits {
			sink.Layer(image.LayerWaits)
		} else {
			sink.Layer(image.LayerGoesOn)
		}
	}
}

// pulling is a pull under way: one attempt after the other, until the image can be used or an error
// is the end. It passes on to the sink how far they come.
type pulling struct {
	*Puller
	image.Sink
	attempt
	ref         string
	creds       image.Credentials
	snapshotter string
	since       time.Time
	arriving    *arriving
	senders     senders
	// begun are the blobs that an earlier pull has begun to fetch, and resumed says that the image
	// needs one of them: if the pull fails over the digest of a blob, the beginning may be wrong,
	// as after a power cut, and not the registry. It is removed then ([blobWriter]), and the image
	// can be fetched anew.
	begun   map[string]bool
	resumed atomic.Bool
	lie     error // over which another server was asked
}

// run makes attempts until one is the last, and returns the image.
func (p *pulling) run(ctx context.Context) (img images.Image, err error) {
	defer p.arriving.stop()
	for !p.over() {
		if p.at == stageMending {
			if p.snapshotter == overlay { // no others are verified
				err = p.verifier.mend(ctx, img, p.since, false, p.Sink)
			}
		} else {
			img, err = p.fetch(ctx)
			err = p.arriving.wait(err)
		}
		o := p.outcome(err)
		if o == wrongBytes {
			p.cfg.Logger.Warn("a server has sent wrong bytes of an image: the next one is asked", "name", p.ref, "err", err)
			p.lie = cmp.Or(p.lie, err)
		} else if o == gaveUp && p.lie != nil && errdefs.IsNotFound(connection.Native(err)) {
			err = p.lie // nobody else has the blob
		}
		if o == needsParent { // what is being fetched is needed in any case
			p.cfg.Logger.Info("image is unpacked layer by layer", "name", p.ref, "reason", err)
		} else {
			p.arriving.stop()
		}
		p.attempt = p.after(o)
	}
	return img, err
}

// outcome translates the error of an attempt.
func (p *pulling) outcome(err error) outcome {
	switch {
	case err == nil:
		return succeeded
	case p.at == stageMending && errdefs.IsNotFound(err):
		return blobMissing
	case p.at == stageMending:
		return gaveUp
	case errors.Is(err, unpack.ErrNeedsParent):
		return needsParent
	case errors.Is(err, errGoneBelow):
		return layerGone
	case errors.Is(err, errArtifact):
		return anArtifact
	case errors.Is(err, errCheckpoint):
		return aCheckpoint
	case errdefs.IsFailedPrecondition(connection.Native(err)) && p.resumed.Load():
		p.senders.forgive() // the beginning may be what is wrong
		return wrongBeginning
	case p.senders.learned(), errors.Is(err, errAnew):
		return wrongBytes
	}
	return gaveUp
}

// fetch fetches the image, and unpacks its layers or lays its files out as the attempt is to. An
// artifact has no layers to be unpacked, and that of a checkpoint is read where it is: errArtifact
// and errCheckpoint say so before any of them is fetched.
func (p *pulling) fetch(ctx context.Context) (images.Image, error) {
	img, err := p.fromRegistry(ctx)
	if err != nil || p.at != stagePlacing {
		return img, err
	}
	p.Layer(image.LayerBegins)
	defer p.Layer(image.LayerEnds)
	return img, p.unpacker.unpack(ctx, img, p.snapshotter)
}

// fromRegistry has containerd's client fetch the image, and unpack it if the attempt does.
func (p *pulling) fromRegistry(ctx context.Context) (images.Image, error) {
	named, err := reference.ParseDockerRef(p.ref)
	if err != nil {
		return images.Image{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	hosts := p.senders.watch(p.registries.hosts(ctx, reference.Domain(named), p.creds, p.Received))
	blobs := boundedStore{p.client.ContentStore(), p.early, p.arriving, &p.senders, p.jobs.room}
	fromPeers := blobs
	fromPeers.senders = nil
	own := newResolver(hosts)
	own.ranges = &ranges{p.registries.shares.of(reference.Domain(named)), &p.senders}
	resolver := askingResolver{own, p.Resolved}
	handlers := []images.Handler{images.HandlerFunc(checkSize)}
	shared := p.served.share(repositoryOf(p.ref))
	defer shared.over()
	if p.cfg.Peers != nil {
		handlers = append(handlers, peerFetch{
			core:       p.core,
			store:      fromPeers,
			askAgain:   p.askAgain,
			repository: shared.repository,
			registry:   func(ctx context.Context) (remotes.Fetcher, error) { return resolver.Fetcher(ctx, named.String()) },
			progress:   p.Received,
		})
	}
	img, err := p.unpacker.containerd(p.Sink, blobs).Pull(ctx, p.ref, append(p.unpacking(),
		containerd.WithResolver(resolver),
		containerd.WithImageHandler(images.Handlers(handlers...)),
		containerd.WithImageHandlerWrapper(func(h images.Handler) images.Handler {
			return watched{p.described(named.String(), h), p, shared}
		}),
		containerd.WithPullSnapshotter(p.snapshotter),
		containerd.WithPullLabel(labelManaged, "managed"),
		containerd.WithMaxConcurrentDownloads(p.cfg.MaxConcurrentDownloads),
		containerd.WithPlatformMatcher(platforms.Default()))...)
	if err != nil {
		return images.Image{}, err
	}
	return img.Metadata(), nil
}

// described has a snapshotter that is not built in told, in labels, of which image and layer each
// snapshot is. One that has the layer from elsewhere, or gets the files as they are read, answers
// that the layer is there, and its blob is not fetched.
func (p *pulling) described(ref string, h images.Handler) images.Handler {
	if p.snapshotter == overlay || p.snapshotter == native {
		return h
	}
	return snapshotters.AppendInfoHandlerWrapper(ref)(h)
}

// unpacking returns the options by which containerd's client unpacks the image; none if it does
// not.
func (p *pulling) unpacking() []containerd.RemoteOpt {
	if !p.unpacks() {
		return nil
	}
	opts := []containerd.UnpackOpt{encryption.WithUnpackConfigApplyOpts(p.unpacker.keys.decrypting)}
	if p.all {
		opts = append(opts, containerd.WithUnpackFetchAllContent())
	}
	if n := p.cfg.MaxConcurrentUnpacks; n > 1 && p.at == stageBeside {
		// The limit is that of one image: a layer counts while its bytes are waited for, and one
		// pull must not wait for the registry of another. How many are unpacked in all is bounded
		// by unpack.Applier.
		opts = append(opts, containerd.WithUnpackLimiter(semaphore.NewWeighted(int64(n))))
	}
	return append(p.jobs.keeping(), containerd.WithPullUnpack, containerd.WithUnpackOpts(opts))
}

// needs notes which blobs the image consists of, as that becomes known.
func (p *pulling) needs(blobs []image.Blob) {
	if slices.ContainsFunc(blobs, func(b image.Blob) bool { return p.begun[b.Digest] }) {
		p.resumed.Store(true)
	}
	p.Needs(blobs)
}

// fileMediaType is the type that containerd's client sees of a file of an artifact, because it
// takes each blob of the common type application/octet-stream for the configuration of an early
// Docker image, and notes that from several goroutines without a lock.
const fileMediaType = "application/x-octet-stream"

// watched reports the parts of an image, as the handlers of a pull find them, and stops at the
// manifest of an artifact. It runs in goroutines of containerd's client, where a panic over the
// image would end berth.
type watched struct {
	images.Handler
	of     *pulling
	shared *sharing
}

// Handle fetches one part of the image.
func (w watched) Handle(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	cfg := w.of.cfg
	children, err := image.Contain(cfg.Logger, cfg.Panicked, w.of.ref, func() ([]ocispec.Descriptor, error) { return w.handle(ctx, desc) })
	if err != nil {
		return children, err
	}
	blobs := []image.Blob{{Digest: desc.Digest.String(), Size: desc.Size}}
	for _, c := range children {
		blobs = append(blobs, image.Blob{Digest: c.Digest.String(), Size: c.Size})
	}
	w.of.needs(blobs)
	w.shared.add(desc)
	w.shared.add(children...)
	return children, nil
}

func (w watched) handle(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if !w.of.unpacks() && desc.MediaType == docker.LegacyConfigMediaType {
		desc.MediaType = fileMediaType
	}
	if w.of.unpacks() && images.IsLayerType(desc.MediaType) {
		return nil, w.of.arriving.fetch(ctx, desc.Digest, func(ctx context.Context) error {
			_, err := image.Contain(w.of.cfg.Logger, w.of.cfg.Panicked, w.of.ref, func() (struct{}, error) {
				_, err := w.Handler.Handle(ctx, desc)
				return struct{}{}, err
			})
			return err
		})
	}
	children, err := w.Handler.Handle(ctx, desc)
	switch {
	case errdefs.IsNotFound(connection.Native(err)) && images.IsIndexType(desc.MediaType):
		err = checkIndex(ctx, w.of.content(), desc, err)
	case err != nil:
	case images.IsManifestType(desc.MediaType):
		err = w.checkManifest(ctx, desc)
	case images.IsConfigType(desc.MediaType) && w.of.unpacks():
		err = checkConfig(ctx, w.of.content(), desc)
	}
	return children, err
}

// checkManifest looks at a manifest that was fetched, before anything else of the image is. An
// artifact that cannot be laid out is refused; one that can be ends an attempt that unpacks with
// errArtifact, and a checkpoint with errCheckpoint.
func (w watched) checkManifest(ctx context.Context, desc ocispec.Descriptor) error {
	m, err := manifestOf(ctx, w.of.content(), desc)
	switch {
	case err != nil:
		return err
	case !m.isArtifact() && m.checkpoint && w.of.unpacks():
		return errCheckpoint
	case !m.isArtifact():
		return nil
	}
	if _, err := artifact.Files(m.Manifest); err != nil {
		return err
	}
	if w.of.unpacks() {
		return errArtifact
	}
	return nil
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

// begunBlobs returns the digests of the blobs of which the beginning is here. If that cannot be
// told, there are none: the image is fetched anew by the next pull.
func begunBlobs(ctx context.Context, conn *connection.Connection) map[string]bool {
	all, err := conn.ContentStore().ListStatuses(ctx)
	if err != nil {
		return nil
	}
	begun := map[string]bool{}
	for _, st := range all {
		if st.Offset > 0 {
			begun[blobOf(st.Ref)] = true
		}
	}
	return begun
}
