// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	dockerconfig "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth/internal/image"
)

// Labels of images that the ecosystem reads.
const (
	labelManaged = "io.cri-containerd.image"
	labelPinned  = "io.cri-containerd.pinned"
)

// maxConfig bounds an image's configuration, in bytes.
const maxConfig = 8 << 20

// ImagesConfig is what pulling needs to know.
type ImagesConfig struct {
	Snapshotter            string
	RegistryDir            string // of certs.d directories; "" for none
	MaxConcurrentDownloads int
	Owner                  string // this berth's ID
	MountDir               string // where images are mounted to be read; nobody else's
	Logger                 *slog.Logger
}

// Images is containerd's image store.
type Images struct {
	client *containerd.Client
	cfg    ImagesConfig
	temp   atomic.Uint64
	views  sync.Map // by key, those in use
	usage  struct {
		sync.Mutex
		committed map[string]snapshots.Usage // never changes once a snapshot is committed
	}
}

// NewImages wraps a client; the caller closes it. There is one in a process: where it mounts is known to containerd's packages
// as a whole.
func NewImages(client *containerd.Client, cfg ImagesConfig) (*Images, error) {
	if err := prepareMounts(cfg.MountDir); err != nil {
		return nil, err
	}
	i := &Images{client: client, cfg: cfg}
	i.usage.committed = map[string]snapshots.Usage{}
	return i, nil
}

// Snapshotter is where images are unpacked.
func (i *Images) Snapshotter() string { return i.cfg.Snapshotter }

// List reads every name. Images that are not complete are left out.
func (i *Images) List(ctx context.Context) ([]image.Stored, error) {
	ctx = ns(ctx)
	all, err := i.client.ImageService().List(ctx)
	if err != nil {
		return nil, native(err)
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
func (i *Images) Get(ctx context.Context, name string) (image.Stored, error) {
	ctx = ns(ctx)
	img, err := i.client.ImageService().Get(ctx, name)
	if err != nil {
		return image.Stored{}, native(err)
	}
	return i.read(ctx, img)
}

func (i *Images) read(ctx context.Context, img images.Image) (image.Stored, error) {
	c := containerd.NewImage(i.client, img)
	desc, err := c.Config(ctx)
	if err != nil {
		return image.Stored{}, fmt.Errorf("read image %s: %w", img.Name, native(err))
	}
	if desc.Size > maxConfig {
		return image.Stored{}, fmt.Errorf("read image %s: its configuration has %d bytes, more than %d: %w", img.Name, desc.Size, maxConfig, errdefs.ErrInvalidArgument)
	}
	b, err := content.ReadBlob(ctx, i.client.ContentStore(), desc)
	if err != nil {
		return image.Stored{}, fmt.Errorf("read image %s: configuration: %w", img.Name, native(err))
	}
	var o ocispec.Image
	if err := json.Unmarshal(b, &o); err != nil {
		return image.Stored{}, fmt.Errorf("read image %s: configuration: %w", img.Name, err)
	}
	size, err := c.Size(ctx)
	if err != nil {
		return image.Stored{}, fmt.Errorf("read image %s: size: %w", img.Name, native(err))
	}
	return image.Stored{
		Name: img.Name, Digest: img.Target.Digest.String(), ID: desc.Digest.String(), ChainID: identity.ChainID(o.RootFS.DiffIDs).String(),
		Size: size, Config: o.Config, Pinned: img.Labels[labelPinned] == "pinned",
	}, nil
}

// Pull fetches and unpacks an image.
func (i *Images) Pull(ctx context.Context, ref string, creds image.Credentials, progress func()) (image.Stored, error) {
	ctx = ns(ctx)
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return image.Stored{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	img, err := i.client.Pull(ctx, ref,
		containerd.WithResolver(docker.NewResolver(docker.ResolverOptions{Hosts: i.hosts(ctx, reference.Domain(named), creds, progress)})),
		containerd.WithPullUnpack, containerd.WithPullSnapshotter(i.cfg.Snapshotter),
		containerd.WithPullLabel(labelManaged, "managed"),
		containerd.WithMaxConcurrentDownloads(i.cfg.MaxConcurrentDownloads),
		containerd.WithPlatformMatcher(platforms.Default()))
	if err != nil {
		return image.Stored{}, native(err)
	}
	return i.read(ctx, img.Metadata())
}

// hosts configures registries from certs.d directories, if there are any. Credentials are given to the image's own
// registry alone: a manifest that names other hosts gets nothing for them.
func (i *Images) hosts(ctx context.Context, registry string, creds image.Credentials, progress func()) docker.RegistryHosts {
	o := dockerconfig.HostOptions{
		Credentials: func(host string) (string, string, error) {
			if host != registry && !(registry == "docker.io" && host == "registry-1.docker.io") {
				return "", "", nil
			}
			if creds.Token != "" {
				return "", creds.Token, nil
			}
			return creds.Username, creds.Password, nil
		},
		UpdateClient: func(c *http.Client) error {
			c.Transport = counting{c.Transport, progress}
			return nil
		},
	}
	if i.cfg.RegistryDir != "" {
		o.HostDir = dockerconfig.HostDirFromRoot(i.cfg.RegistryDir)
	}
	return dockerconfig.ConfigureHosts(ctx, o)
}

// counting reports that bytes come.
type counting struct {
	next     http.RoundTripper
	progress func()
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	next := c.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(r)
	if err == nil {
		c.progress()
		resp.Body = body{resp.Body, c.progress}
	}
	return resp, err
}

type body struct {
	io.ReadCloser
	progress func()
}

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.progress()
	}
	return n, err
}

// Import reads an archive and unpacks what is in it.
func (i *Images) Import(ctx context.Context, path, ref string) ([]image.Stored, error) {
	ctx, done, err := i.client.WithLease(ns(ctx))
	if err != nil {
		return nil, native(err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	opts := []containerd.ImportOpt{containerd.WithImageLabels(map[string]string{labelManaged: "managed"}), containerd.WithSkipMissing()}
	if ref != "" {
		opts = append(opts, containerd.WithImageRefTranslator(func(name string) string {
			if name == "" || !strings.Contains(name, "/") {
				return ref
			}
			return name
		}), containerd.WithIndexName(ref))
	}
	imgs, err := i.client.Import(ctx, f, opts...)
	if err != nil {
		return nil, native(err)
	}
	var out []image.Stored
	for _, img := range imgs {
		c := containerd.NewImage(i.client, img)
		if err := c.Unpack(ctx, i.cfg.Snapshotter); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", img.Name, native(err))
		}
		st, err := i.read(ctx, img)
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there is no image with a name in it; give one with --ref: %w", errdefs.ErrInvalidArgument)
	}
	return out, nil
}

// Tag stores a name for what s is.
func (i *Images) Tag(ctx context.Context, s image.Stored, name string) error {
	ctx = ns(ctx)
	store := i.client.ImageService()
	src, err := store.Get(ctx, s.Name)
	if err != nil {
		return native(err)
	}
	want := images.Image{Name: name, Target: src.Target, Labels: map[string]string{labelManaged: "managed"}}
	if _, err = store.Create(ctx, want); errdefs.IsAlreadyExists(native(err)) {
		_, err = store.Update(ctx, want, "target", "labels."+labelManaged)
	}
	return native(err)
}

// Delete removes a name; what no name needs any more is collected by containerd.
func (i *Images) Delete(ctx context.Context, name string) error {
	return native(i.client.ImageService().Delete(ns(ctx), name, images.SynchronousDelete()))
}

// ReadFiles reads files of an image. Links are followed within the image only.
func (i *Images) ReadFiles(ctx context.Context, chainID string, limit int64, paths ...string) ([][]byte, error) {
	out := make([][]byte, len(paths))
	err := i.view(ctx, chainID, func(root string) error {
		dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open image root: %w", err)
		}
		defer unix.Close(dir)
		for n, p := range paths {
			if out[n], err = readIn(dir, p, limit); err != nil {
				return fmt.Errorf("read /%s of image: %w", p, err)
			}
		}
		return nil
	})
	return out, err
}

func readIn(dir int, path string, limit int64) ([]byte, error) {
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("it is larger than %d bytes: %w", limit, errdefs.ErrInvalidArgument)
	}
	return b, nil
}

// CopyOut copies a directory of the image. A link in its path is followed within the image only.
func (i *Images) CopyOut(ctx context.Context, chainID, path, dir string) error {
	return i.view(ctx, chainID, func(root string) error {
		src, err := fs.RootPath(root, path)
		if err != nil {
			return fmt.Errorf("find %s in image: %w", path, err)
		}
		st, err := os.Lstat(src)
		if errors.Is(err, os.ErrNotExist) || err == nil && !st.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		return fs.CopyDir(dir, src)
	})
}

// Usage sums up the snapshotter's snapshots and the content store.
func (i *Images) Usage(ctx context.Context) (image.Usage, error) {
	ctx = ns(ctx)
	u := image.Usage{At: time.Now()}
	resp, err := i.client.IntrospectionService().Plugins(ctx, `type==io.containerd.snapshotter.v1,id==`+i.cfg.Snapshotter)
	if err == nil {
		for _, p := range resp.Plugins {
			u.Path = p.Exports["root"]
		}
	}
	sn := i.client.SnapshotService(i.cfg.Snapshotter)
	i.usage.Lock()
	defer i.usage.Unlock()
	seen := map[string]snapshots.Usage{}
	err = sn.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
		us, known := i.usage.committed[info.Name]
		if info.Kind != snapshots.KindCommitted || !known {
			var err error
			if us, err = sn.Usage(ctx, info.Name); err != nil {
				return nil //nolint:nilerr // removed meanwhile
			}
		}
		if info.Kind == snapshots.KindCommitted {
			seen[info.Name] = us
		}
		u.Bytes += uint64(us.Size)    //nolint:gosec // never negative
		u.Inodes += uint64(us.Inodes) //nolint:gosec // never negative
		return nil
	})
	if err != nil {
		return u, native(err)
	}
	i.usage.committed = seen
	u.Path = filepath.Clean(u.Path)
	return u, nil
}
