// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"berth/internal/base/ops"
)

// Stored is one name in containerd's image store and its image.
type Stored struct {
	Name Name
	// ID is the digest of the configuration. Anybody can make a manifest that claims another
	// image's configuration, so that of an artifact or a checkpoint it is the digest of the
	// manifest.
	ID      string
	ChainID string
	Size    int64
	Config  ocispec.ImageConfig // shared by all names of the image: read-only
	Pinned  bool                // by containerd's label; of an [Image], for any reason
	Created time.Time           // when the name was made on this node; zero if that is not known
	// Checkpoint is set if the image is not one to run, but holds a checkpoint of a container.
	Checkpoint bool
	// Artifact is the type of an OCI artifact, and "" for an image. An artifact is mounted as an
	// image is, and not run.
	Artifact string
}

// Backend is containerd's image store.
type Backend interface {
	Names
	Puller
	Reader
}

// Names are the names in the store.
type Names interface {
	List(ctx context.Context) ([]Stored, error)
	// Get reads one name; ErrNotFound.
	Get(ctx context.Context, name string) (Stored, error)
	// Delete removes a name if it stands for the same as before, and is ErrNotFound otherwise.
	Delete(ctx context.Context, n Name) error
}

// Puller brings images to this node.
type Puller interface {
	// Pull fetches ref and unpacks it in a snapshotter ("" is that of most images), and then stores
	// its [Stored.NamesGiven].
	Pull(ctx context.Context, ref string, creds Credentials, snapshotter string, sink Sink) (Stored, error)
	// Fetched returns how many bytes of each blob, by its digest, are on this node.
	Fetched(ctx context.Context, blobs []Blob) (map[string]int64, error)
	// Import reads an OCI or docker archive, unpacks its images, and then stores the
	// [Stored.NamesGiven] of all. ref names the image that has no name, or the only one. leftOut
	// has a sentence for each image that is not taken. read is called with how many bytes of the
	// archive were read, out of how many.
	Import(ctx context.Context, path, ref string, read func(done, total int64)) (taken []Stored, leftOut []string, err error)
	// Unpack makes the snapshots of a name's image in a snapshotter. Those that exist are kept.
	// ErrNotFound when layers are missing.
	Unpack(ctx context.Context, n Name, snapshotter string) error
	// DropKept removes the blobs that are kept of pulls that were cut off.
	DropKept(ctx context.Context) error
	// Registry returns the registry of an image, with the credentials that the configuration has
	// for it. Nothing is asked yet.
	Registry(ref string) Registry
	Snapshotter() string
}

// Root is the root directory of an image that is unpacked in a snapshotter; "" is that of most
// images.
type Root struct{ ChainID, Snapshotter string }

// Reader reads images, and measures the disk.
type Reader interface {
	// ReadFiles reads files of the image's root, at most limit bytes each; absent ones are empty.
	// ErrNotFound when the image is not unpacked.
	ReadFiles(ctx context.Context, r Root, limit int64, paths ...string) ([][]byte, error)
	// CopyOut copies directories of the image's root, by their paths, into the directories that
	// dirs has for them. ErrNotFound when the image is not unpacked, and ErrInvalidArgument when
	// they are too large together.
	CopyOut(ctx context.Context, r Root, dirs map[string]string) error
	// Checkpoint returns the archive of the checkpoint with an ID, which the caller closes.
	// ErrNotFound when it is not on this node.
	Checkpoint(ctx context.Context, id string) (io.ReadCloser, error)
	// Usage measures until ctx ends, and takes the last known size of the layers that are left.
	Usage(ctx context.Context) (Usage, error)
	// Contents lists the blobs and layers on the disk, and those of each image.
	Contents(ctx context.Context) (Contents, error)
}

// Config is the service's settings. Zero durations take the defaults.
type Config struct {
	PullTimeout time.Duration // without a byte, while no layer is unpacked; 5 min
	// MinBytesPerMinute is how many bytes have to come on average during PullTimeout; 0: any byte
	// will do.
	MinBytesPerMinute int64
	UnpackTimeout     time.Duration // of unpacking a layer of a pull, or an image that is there already; 10 min
	// Needed are the names of images that the garbage collection of the kubelet is to leave: those
	// that pods need besides the images of their containers. Names that are not references are not
	// used.
	Needed []string
	// Pinned are references and patterns of further images that it is to leave: see
	// [Service.SetPinned].
	Pinned []string
	Logger *slog.Logger
	// Panicked is called when a panic over an image was contained. It may be nil.
	Panicked func()
	// Pulled is called when a pull has ended. It may be nil.
	Pulled func(Pulled)
	// Policy decides which images may be pulled; nil: all may.
	Policy Policy
	// Ops lists the transfers; nil: a list that nothing else knows.
	Ops *ops.List
}

// Service is the image service. Its methods may be called from any goroutine.
type Service struct {
	*loaded
	*meter
	transfers // in flight
	backend   Backend
	cfg       Config
	dirty     chan string // names that changed
	pulls     flights[pullKey, string]
	unpacks   flights[unpackKey, struct{}] // by chain ID and snapshotter
	files     *Cache[[2][]byte]            // passwd and group by chain ID
	// reading is held while the store is read and the index changed accordingly: an older answer
	// must not take the place of a newer one.
	reading *semaphore.Weighted
}

// New makes a service without images; Refresh fills it.
func New(b Backend, cfg Config) *Service {
	if cfg.PullTimeout <= 0 {
		cfg.PullTimeout = 5 * time.Minute
	}
	if cfg.UnpackTimeout <= 0 {
		cfg.UnpackTimeout = 10 * time.Minute
	}
	if cfg.Ops == nil {
		cfg.Ops = &ops.List{}
	}
	return &Service{
		loaded:    newLoaded(pins{}.withNeeded(cfg.Needed).withConfigured(cfg.Pinned)),
		transfers: transfers{list: cfg.Ops},

		backend: b,
		cfg:     cfg,
		dirty:   make(chan string, 1024),
		files:   NewCache[[2][]byte](maxCachedFiles),
		reading: semaphore.NewWeighted(1),
		meter:   &meter{reader: b, log: cfg.Logger, first: make(chan struct{})},
	}
}

// Changed notes that a name was made, changed or removed. It never blocks: when more names change
// than can wait, all names are read again.
func (s *Service) Changed(name string) {
	select {
	case s.dirty <- name:
	default:
		select {
		case <-s.dirty:
		default:
		}
		select {
		case s.dirty <- "": // everything
		default:
		}
	}
}

// Run follows changes and measures usage until ctx ends. It ends the pulls and unpackings in
// flight, and waits for them.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.sample(ctx) })
	defer wg.Wait()
	defer s.unpacks.end()
	defer s.pulls.end()
	for {
		select {
		case <-ctx.Done():
			return nil
		case name := <-s.dirty:
			var err error
			if name == "" {
				err = s.Refresh(ctx)
			} else {
				err = s.refreshName(ctx, name)
			}
			if err != nil && ctx.Err() == nil {
				s.cfg.Logger.Warn("images cannot be read", "name", name, "err", err)
			}
		}
	}
}

// read runs f while nothing else reads the store into the index.
func (s *Service) read(ctx context.Context, f func() error) error {
	if err := s.reading.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("read images: %w", err)
	}
	defer s.reading.Release(1)
	return f()
}

// Refresh reads all names.
func (s *Service) Refresh(ctx context.Context) error {
	return s.read(ctx, func() error {
		all, err := s.backend.List(ctx)
		if err != nil {
			return fmt.Errorf("list images: %w", err)
		}
		for _, st := range all {
			s.mention(st)
		}
		s.change(func(x *index) { *x = newIndex(all, x.pins) })
		return nil
	})
}

func (s *Service) refreshName(ctx context.Context, name string) error {
	return s.read(ctx, func() error {
		st, err := s.backend.Get(ctx, name)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("read image %s: %w", name, err)
		}
		if err != nil {
			s.change(func(x *index) { x.drop(name) })
			return nil
		}
		s.mention(st)
		s.change(func(x *index) { x.put(st) })
		return nil
	})
}

// mention logs that a name is not used.
func (s *Service) mention(st Stored) {
	if st.Name.IsWrong() {
		s.cfg.Logger.Warn("an image has a name that is not used, since it is not complete or has the digest of another image; the image is found by its ID",
			"name", st.Name, "target", st.Name.Target().Digest, "id", st.ID)
	}
}

// Snapshotter returns the name of the snapshotter that images are unpacked into.
func (s *Service) Snapshotter() string { return s.backend.Snapshotter() }
