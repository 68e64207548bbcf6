// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/imgcrypt/v2/images/encryption"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/image"
)

// Labels of images that the ecosystem reads.
const (
	labelManaged = "io.cri-containerd.image"
	labelPinned  = "io.cri-containerd.pinned"
)

// managed are the labels of each name.
var managed = map[string]string{labelManaged: "managed"}

const (
	// maxConfig bounds the part of an image's configuration that is kept in memory, in bytes as it
	// is written: what a container is run with, and not the history.
	maxConfig = 1 << 20
	// maxParsed bounds what is remembered of all configurations together, in bytes.
	maxParsed = 16 << 20
)

// Config is what pulling needs to know.
type Config struct {
	Snapshotter string
	// Snapshotters are others, into which images are unpacked when a container needs them there.
	Snapshotters           []string
	RegistryDir            string // of certs.d directories; "" for none
	DecryptionKeysDir      string // of private keys for encrypted layers; "" for none
	MaxConcurrentDownloads int
	// MaxConcurrentUnpacks is how many layers of one image are unpacked at the same time. More than 1
	// needs a containerd in this process, and a snapshotter that can put a layer onto others later.
	MaxConcurrentUnpacks int
	// Credentials are those of registries and mirrors by host, for pulls that bring none along.
	Credentials map[string]image.Credentials
	Owner       string // this berth's ID
	MountDir    string // where images are mounted to be read; nobody else's
	Logger      *slog.Logger
	// Panicked is called when a panic over an image was contained. It may be nil.
	Panicked func()
	// Boot says whether images are doubted after an unclean boot. With nil, no image gets a mark
	// and none is ever doubted.
	Boot *durable.Boot
	// Root is the directory of the containerd in this process; "" for another one, or for none.
	Root string
	// WriteLate lets the kernel decide when it writes back what is pulled and unpacked: see
	// [durable.Early].
	WriteLate bool
	// Checked is called with what the check of a layer or a blob has come to. It may be nil.
	Checked func(i durable.Item, o durable.Outcome)
	// Peers are asked for blobs before registries are. It may be nil.
	Peers Peers
}

// Store is containerd's image store.
type Store struct {
	client *connection.Connection
	cfg    Config
	opened time.Time // what a pull unpacks that is older was left by one before
	temp   atomic.Uint64
	views  sync.Map    // by key, those in use
	jobs   sync.Map    // the leases of pulls and imports, by key, those in use or of value heldLease
	swept  atomic.Bool // the leases that an earlier berth has left are in jobs, or gone
	parsed *image.Cache[parsed]
	usage  sampler
	// credentials are those that are configured now, by host; nil: those of cfg.
	credentials atomic.Pointer[map[string]image.Credentials]
	discards    atomic.Bool // the compressed layers of what is pulled or imported are not kept
	served      served
	early       *earlyBlobs
	askAgain    time.Duration // after which peers are asked again for what the registry sends

	keeper  *durable.Keeper // nil: no image is ever doubted
	dirs    layerDirs
	root    *os.File // nil: it is not open
	mending locks    // by chain ID: one repair at a time
	remade  sync.Map // by layer: how often it was written again, an int
	syncs   sync.Map // by layer: how often it had been when its sync began
	wrong   sync.Map // the layers that a verification has found wrong and not repaired
	looked  sync.Map // by chain ID: the layers that a pull has compared with their indexes
}

// parsed is what a manifest or an index stands for. It never changes.
type parsed struct {
	id           digest.Digest // of the image
	configDigest digest.Digest // "" for an artifact
	chainID      string
	size         int64
	config       ocispec.ImageConfig
	checkpoint   bool
	artifact     string // the type of an artifact
}

// New makes the image store of a connection, which the caller closes. There is one in a
// process: where images are mounted is a setting of containerd's packages as a whole.
func New(conn *connection.Connection, cfg Config) (*Store, error) {
	if err := prepareMounts(cfg.MountDir, cfg.Logger); err != nil {
		return nil, err
	}
	i := &Store{
		early:  newEarlyBlobs(cfg),
		client: conn,
		cfg:    cfg,
		opened: time.Now(),
		parsed: image.NewCache[parsed](maxParsed),
		served: served{images: image.NewCache[members](maxServed)},

		askAgain: askAgain,
	}
	if cfg.Boot != nil {
		i.root = openRoot(cfg.Root, cfg.Logger)
		i.keeper = durable.NewKeeper(durable.Config{
			Store:   durability{i},
			Boot:    cfg.Boot,
			Log:     cfg.Logger,
			Checked: cfg.Checked,
		})
	}
	return i, nil
}

// SetCredentials replaces the credentials of the configuration, for pulls that begin from now on.
func (i *Store) SetCredentials(byHost map[string]image.Credentials) { i.credentials.Store(&byHost) }

// SetDiscard says whether the compressed layers of images that are pulled or imported from now on
// are dropped once they are unpacked.
func (i *Store) SetDiscard(on bool) { i.discards.Store(on) }

// Snapshotter returns the name of the snapshotter that images are unpacked into.
func (i *Store) Snapshotter() string { return i.cfg.Snapshotter }

// List reads every name. Images that are not complete are left out.
func (i *Store) List(ctx context.Context) ([]image.Stored, error) {
	ctx = connection.Namespaced(ctx)
	all, err := i.client.ImageService().List(ctx)
	if err != nil {
		return nil, connection.Native(err)
	}
	var out []image.Stored
	for _, img := range all {
		st, err := i.read(ctx, img)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("list images: %w", ctx.Err())
		}
		if err != nil {
			i.cfg.Logger.Warn("image is not complete and left out", "name", img.Name, "err", err)
			continue
		}
		out = append(out, st)
	}
	return out, nil
}

// Get reads one name.
func (i *Store) Get(ctx context.Context, name string) (image.Stored, error) {
	ctx = connection.Namespaced(ctx)
	img, err := i.client.ImageService().Get(ctx, name)
	if err != nil {
		return image.Stored{}, connection.Native(err)
	}
	return i.read(ctx, img)
}

func (i *Store) read(ctx context.Context, img images.Image) (image.Stored, error) {
	p, err := i.parse(ctx, img)
	if err != nil {
		return image.Stored{}, fmt.Errorf("read image %s: %w", img.Name, connection.Native(err))
	}
	name, _ := image.NewName(img.Name, img.Target, p.id.String()) // a wrong one is kept as such
	return image.Stored{
		Name:    name,
		ID:      p.id.String(),
		ChainID: p.chainID,
		Size:    p.size,
		Config:  p.config,
		Pinned:  img.Labels[labelPinned] == "pinned",
		Created: img.CreatedAt,

		Checkpoint: p.checkpoint,
		Artifact:   p.artifact,
	}, nil
}

// parse reads the manifest and the configuration of an image. An image has several names, and each
// of them is read at each of its changes, so that the outcome is remembered as long as the
// configuration is there. A panic over it is ErrInternal.
func (i *Store) parse(ctx context.Context, img images.Image) (parsed, error) {
	return image.Contain(i.cfg.Logger, i.cfg.Panicked, img.Name, func() (parsed, error) { return i.parseTrusting(ctx, img) })
}

// parseTrusting does what parse does, and the parsers may panic in it.
func (i *Store) parseTrusting(ctx context.Context, img images.Image) (parsed, error) {
	key := img.Target.Digest.String()
	cs := i.bounded().ContentStore()
	if p, ok := i.parsed.Get(key); ok {
		_, err := cs.Info(ctx, cmp.Or(p.configDigest, p.id))
		return p, err
	}
	m, err := manifestOf(ctx, cs, img.Target)
	if err != nil {
		return parsed{}, err
	}
	if m.isArtifact() {
		p := m.parsed(img.Target)
		i.parsed.Put(key, p, len(p.artifact))
		return p, nil
	}
	c := containerd.NewImage(i.bounded(), img)
	manifest, err := images.Manifest(ctx, cs, img.Target, c.Platform())
	if err != nil {
		return parsed{}, err
	}
	desc := manifest.Config
	b, err := content.ReadBlob(ctx, cs, desc)
	if err != nil {
		return parsed{}, fmt.Errorf("configuration: %w", err)
	}
	p, kept, err := parseConfig(b)
	if err != nil {
		return parsed{}, fmt.Errorf("configuration: %w", err)
	}
	if p.size, err = c.Size(ctx); err != nil {
		return parsed{}, fmt.Errorf("size: %w", err)
	}
	p.id, p.configDigest = desc.Digest, desc.Digest
	if p.checkpoint = m.checkpoint; p.checkpoint {
		p.id = m.desc.Digest
	}
	i.parsed.Put(key, p, kept)
	return p, nil
}

// checkConfig refuses an image with a configuration that cannot be used before the image has a
// name.
func checkConfig(ctx context.Context, cs content.Provider, desc ocispec.Descriptor) error {
	b, err := content.ReadBlob(ctx, cs, desc)
	if err == nil {
		if _, _, err = parseConfig(b); err != nil {
			err = fmt.Errorf("configuration %s: %w", desc.Digest, err)
		}
	}
	return err
}

// parseConfig reads an image's configuration. kept is how many bytes of it stay in memory.
func parseConfig(b []byte) (p parsed, kept int, err error) {
	var o struct {
		SchemaVersion int             `json:"schemaVersion"`
		RootFS        ocispec.RootFS  `json:"rootfs"`
		Config        json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return parsed{}, 0, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if o.SchemaVersion != 0 { // its digest could be the ID of an artifact or a checkpoint as well
		return parsed{}, 0, fmt.Errorf("it has a schemaVersion, as a manifest has: %w", errdefs.ErrInvalidArgument)
	}
	if len(o.Config) > maxConfig {
		return parsed{}, 0, fmt.Errorf("what to run has %d bytes, more than %d: %w", len(o.Config), maxConfig, errdefs.ErrInvalidArgument)
	}
	if len(o.Config) > 0 {
		if err := json.Unmarshal(o.Config, &p.config); err != nil {
			return parsed{}, 0, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
		if err := checkText(o.Config); err != nil {
			return parsed{}, 0, err
		}
	}
	p.chainID = identity.ChainID(o.RootFS.DiffIDs).String()
	return p, len(o.Config), nil
}

// Unpack makes the snapshots of what a name stood for in a snapshotter. Those that exist are kept.
func (i *Store) Unpack(ctx context.Context, n image.Name, snapshotter string) error {
	return i.unpack(connection.Namespaced(ctx), images.Image{Name: n.String(), Target: n.Target()}, snapshotter)
}

func (i *Store) unpack(ctx context.Context, img images.Image, snapshotter string) error {
	defer i.making()()
	a, err := i.artifactOf(ctx, img.Target)
	if err != nil {
		return fmt.Errorf("unpack %s into %s: %w", img.Name, snapshotter, err)
	}
	if a != nil {
		return i.layOut(ctx, img.Name, a, snapshotter)
	}
	unpacked := func() error {
		return containerd.NewImage(i.bounded(), img).Unpack(ctx, snapshotter, encryption.WithUnpackConfigApplyOpts(i.decrypting))
	}
	err = unpacked()
	if errors.Is(err, errGoneBelow) {
		err = unpacked()
	}
	if err != nil {
		return fmt.Errorf("unpack %s into %s: %w", img.Name, snapshotter, connection.Native(err))
	}
	return nil
}

// name stores all names of images that can be used, and nothing else in berth names one. Whatever
// the names stand for by now, they are for what was pulled or imported. The lease in ctx keeps that
// meanwhile.
func (i *Store) name(ctx context.Context, all ...image.Stored) error {
	store := i.client.ImageService()
	for _, st := range all {
		for _, n := range st.NamesGiven() {
			want := images.Image{Name: n.String(), Target: n.Target(), Labels: managed}
			var err error = errdefs.ErrNotFound
			for tries := 0; errdefs.IsNotFound(err) && tries < 3; tries++ { // it may be removed meanwhile
				if _, err = store.Create(ctx, want); errdefs.IsAlreadyExists(connection.Native(err)) {
					_, err = store.Update(ctx, want, "target", "labels."+labelManaged)
				}
				err = connection.Native(err)
			}
			if err != nil {
				return fmt.Errorf("store image name %s: %w", n, err)
			}
		}
	}
	return nil
}

// Delete removes a name if it stands for the same as before, and is ErrNotFound otherwise.
// containerd collects what no name needs any more.
func (i *Store) Delete(ctx context.Context, n image.Name) error {
	target := n.Target()
	return connection.Native(i.client.ImageService().Delete(connection.Namespaced(ctx), n.String(),
		images.SynchronousDelete(), images.DeleteTarget(&target)))
}
