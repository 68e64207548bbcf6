// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Stored is one name in containerd's image store and what it stands for.
type Stored struct {
	Name    string
	Digest  string // of the manifest or index
	ID      string // digest of the configuration
	ChainID string
	Size    int64
	Config  ocispec.ImageConfig
	Pinned  bool
}

// Backend is containerd's image store.
type Backend interface {
	List(ctx context.Context) ([]Stored, error)
	// Get reads one name; ErrNotFound.
	Get(ctx context.Context, name string) (Stored, error)
	// Pull fetches and unpacks ref and stores it under ref. progress is called whenever bytes come.
	Pull(ctx context.Context, ref string, creds Credentials, progress func()) (Stored, error)
	// Import reads an OCI or docker archive and unpacks its images. ref names an image that has no name.
	Import(ctx context.Context, path, ref string) ([]Stored, error)
	// Tag stores another name for what s is.
	Tag(ctx context.Context, s Stored, name string) error
	Delete(ctx context.Context, name string) error
	// ReadFiles reads files of the image's root, at most limit bytes each; absent ones are empty.
	ReadFiles(ctx context.Context, chainID string, limit int64, paths ...string) ([][]byte, error)
	// CopyOut copies the directory path of the image's root into dir.
	CopyOut(ctx context.Context, chainID, path, dir string) error
	// Usage is the file system that images are on, and what they use there.
	Usage(ctx context.Context) (Usage, error)
	Snapshotter() string
}

// Usage is what images use.
type Usage struct {
	Path          string
	Bytes, Inodes uint64
	At            time.Time
}

// Credentials are for one registry.
type Credentials struct{ Username, Password, Token string }

// Config is the service's settings.
type Config struct {
	PullTimeout time.Duration // without a byte; 5 min
	Logger      *slog.Logger
}

// Image is an image with all its names.
type Image struct {
	Stored
	Tags, Digests []string // names with a tag, names with a digest
}

// Ref is a repo digest where there is one, else the ID.
func (i Image) Ref() string {
	if len(i.Digests) > 0 {
		return i.Digests[0]
	}
	return i.ID
}

// Service is the image service. Its methods may be called from any goroutine.
type Service struct {
	backend Backend
	cfg     Config
	dirty   chan string // names that changed
	ops     sync.WaitGroup

	mu struct {
		sync.RWMutex
		byName map[string]Stored
		pulls  map[pullKey]*pull
		files  map[string][2][]byte // passwd and group by chain ID
		usage  Usage
	}
}

// New makes a service without images; Refresh fills it.
func New(b Backend, cfg Config) *Service {
	if cfg.PullTimeout <= 0 {
		cfg.PullTimeout = 5 * time.Minute
	}
	s := &Service{backend: b, cfg: cfg, dirty: make(chan string, 1024)}
	s.mu.byName = map[string]Stored{}
	s.mu.pulls = map[pullKey]*pull{}
	s.mu.files = map[string][2][]byte{}
	return s
}

// Changed says that a name was made, changed or removed. It never blocks: beyond its bound all names
// are read anew.
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

// Run follows changes until ctx ends, then waits for the pulls in flight, which end with it.
func (s *Service) Run(ctx context.Context) error {
	defer s.ops.Wait()
	t := time.NewTicker(30 * time.Second)
	defer t.Stop()
	s.measure(ctx)
	for {
		select {
		case <-ctx.Done():
			s.cancelPulls()
			return nil
		case <-t.C:
			s.measure(ctx)
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

func (s *Service) measure(ctx context.Context) {
	u, err := s.backend.Usage(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Logger.Warn("usage of images cannot be read", "err", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.usage = u
}

// Refresh reads all names.
func (s *Service) Refresh(ctx context.Context) error {
	all, err := s.backend.List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.byName = make(map[string]Stored, len(all))
	for _, st := range all {
		s.mu.byName[st.Name] = st
	}
	return nil
}

func (s *Service) refreshName(ctx context.Context, name string) error {
	st, err := s.backend.Get(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if errdefs.IsNotFound(err) {
		delete(s.mu.byName, name)
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.byName[name] = st
	return nil
}

// images are all images by ID.
func (s *Service) images() map[string]*Image {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[string]*Image{}
	for name, st := range s.mu.byName {
		i, ok := out[st.ID]
		if !ok {
			i = &Image{Stored: st}
			out[st.ID] = i
		}
		i.Pinned = i.Pinned || st.Pinned
		switch {
		case name == st.ID:
		case strings.Contains(name, "@"):
			i.Digests = append(i.Digests, name)
		default:
			i.Tags = append(i.Tags, name)
		}
	}
	for _, i := range out {
		slices.Sort(i.Tags)
		slices.Sort(i.Digests)
	}
	return out
}

// Resolve finds an image by ID, by the beginning of one (of at least 4 digits), or by name. ErrNotFound names what
// was asked for.
func (s *Service) Resolve(ref string) (Image, error) {
	if ref == "" {
		return Image{}, fmt.Errorf("no image was named: %w", errdefs.ErrInvalidArgument)
	}
	all := s.images()
	for _, id := range []string{ref, "sha256:" + ref} {
		if i, ok := all[id]; ok {
			return *i, nil
		}
	}
	if name, err := Normalize(ref); err == nil {
		s.mu.RLock()
		st, ok := s.mu.byName[name]
		s.mu.RUnlock()
		if ok {
			if i, ok := all[st.ID]; ok {
				return *i, nil
			}
		}
	}
	var found []*Image
	if hex := strings.TrimPrefix(ref, "sha256:"); len(hex) >= 4 {
		for id, i := range all {
			if strings.HasPrefix(id, "sha256:"+hex) {
				found = append(found, i)
			}
		}
	}
	switch len(found) {
	case 1:
		return *found[0], nil
	case 0:
		return Image{}, fmt.Errorf("image %q is not on this node; pull or import it: %w", ref, errdefs.ErrNotFound)
	default:
		return Image{}, fmt.Errorf("image %q: %d images have IDs that begin so: %w", ref, len(found), errdefs.ErrInvalidArgument)
	}
}

// Normalize completes a reference as users write it: busybox is docker.io/library/busybox:latest.
func Normalize(ref string) (string, error) {
	n, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image reference %q: %w: %w", ref, err, errdefs.ErrInvalidArgument)
	}
	return n.String(), nil
}

// List lists images, those that the filter's reference names if it has one.
func (s *Service) List(f *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	if ref := f.GetImage().GetImage(); ref != "" {
		i, err := s.Resolve(ref)
		if errdefs.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []*runtimeapi.Image{message(i)}, nil
	}
	var list []*runtimeapi.Image
	for _, i := range s.images() {
		list = append(list, message(*i))
	}
	slices.SortFunc(list, func(a, b *runtimeapi.Image) int { return strings.Compare(a.Id, b.Id) })
	return list, nil
}

// Status is one image, or nil when it is not there.
func (s *Service) Status(ref string) (*runtimeapi.Image, *Image, error) {
	i, err := s.Resolve(ref)
	if errdefs.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return message(i), &i, nil
}

func message(i Image) *runtimeapi.Image {
	m := &runtimeapi.Image{Id: i.ID, RepoTags: i.Tags, RepoDigests: i.Digests, Size: uint64(max(i.Size, 0)), Pinned: i.Pinned, Spec: &runtimeapi.ImageSpec{Image: i.ID}}
	user, _, _ := strings.Cut(i.Config.User, ":")
	if uid, ok := number(user); ok {
		m.Uid = &runtimeapi.Int64Value{Value: uid}
	} else {
		m.Username = user
	}
	return m
}

func number(s string) (int64, bool) {
	if s == "" {
		return 0, false
	}
	var n int64
	for _, r := range s {
		if r < '0' || r > '9' || n > 1<<40 {
			return 0, false
		}
		n = n*10 + int64(r-'0')
	}
	return n, true
}

// Remove removes an image with all its names, by whichever of them it is called: CRI removes images, not tags.
// Removing what is absent succeeds.
func (s *Service) Remove(ctx context.Context, ref string) error {
	i, err := s.Resolve(ref)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	names := slices.Concat(i.Tags, i.Digests, []string{i.ID})
	for _, n := range names {
		if err := s.backend.Delete(ctx, n); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %s: %w", n, err)
		}
		if err := s.refreshName(ctx, n); err != nil {
			return fmt.Errorf("remove image %s: %w", n, err)
		}
	}
	return nil
}

// Import takes up the images of an archive and returns their names.
func (s *Service) Import(ctx context.Context, path, ref string) ([]string, error) {
	if ref != "" {
		n, err := Normalize(ref)
		if err != nil {
			return nil, err
		}
		ref = n
	}
	all, err := s.backend.Import(ctx, path, ref)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	var names []string
	for _, st := range all {
		if err := s.keep(ctx, st); err != nil {
			return nil, fmt.Errorf("import %s: %w", path, err)
		}
		names = append(names, st.Name)
	}
	return names, nil
}

// keep makes st known under its own name, its digest and its ID.
func (s *Service) keep(ctx context.Context, st Stored) error {
	names := []string{st.Name, st.ID}
	if named, err := reference.ParseDockerRef(st.Name); err == nil {
		if c, err := reference.WithDigest(reference.TrimNamed(named), digest.Digest(st.Digest)); err == nil {
			names = append(names, c.String())
		}
	}
	for _, n := range names {
		if err := s.backend.Tag(ctx, st, n); err != nil {
			return fmt.Errorf("store image name %s: %w", n, err)
		}
		if err := s.refreshName(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// maxEtcFile bounds what is read of an image's /etc/passwd and /etc/group, in bytes.
const maxEtcFile = 4 << 20

// maxCachedFiles is how many images' files are remembered.
const maxCachedFiles = 256

// Files are the image's /etc/passwd and /etc/group, read once per image.
func (s *Service) Files(ctx context.Context, chainID string) (passwd, group []byte, err error) {
	s.mu.RLock()
	f, ok := s.mu.files[chainID]
	s.mu.RUnlock()
	if ok {
		return f[0], f[1], nil
	}
	b, err := s.backend.ReadFiles(ctx, chainID, maxEtcFile, "etc/passwd", "etc/group")
	if err != nil {
		return nil, nil, fmt.Errorf("read users of image: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.files) >= maxCachedFiles {
		clear(s.mu.files) // rare, and cheap to read again
	}
	s.mu.files[chainID] = [2][]byte{b[0], b[1]}
	return b[0], b[1], nil
}

// FsInfo is what was measured last.
func (s *Service) FsInfo() *runtimeapi.ImageFsInfoResponse {
	s.mu.RLock()
	defer s.mu.RUnlock()
	u := s.mu.usage
	fs := &runtimeapi.FilesystemUsage{
		Timestamp: u.At.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: u.Path},
		UsedBytes: &runtimeapi.UInt64Value{Value: u.Bytes}, InodesUsed: &runtimeapi.UInt64Value{Value: u.Inodes},
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{fs}, ContainerFilesystems: []*runtimeapi.FilesystemUsage{fs}}
}

var errGone = errors.New("everybody who asked has gone")
