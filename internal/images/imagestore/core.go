// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/base/connection"
	"berth/internal/images/durable"
	"berth/internal/images/image"
	"berth/internal/images/peer"
)

// blobs returns the sizes of all blobs by their digests.
func (c *core) blobSizes(ctx context.Context) (map[string]int64, error) {
	sizes := map[string]int64{}
	err := c.client.ContentStore().Walk(ctx, func(info content.Info) error {
		sizes[info.Digest.String()] = info.Size
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list blobs: %w", connection.Native(err))
	}
	return sizes, nil
}

// blobIsWhole compares a blob with its digest. A blob that cannot be read is an error.
func (c *core) blobIsWhole(ctx context.Context, dgst digest.Digest) (bool, error) {
	r, err := c.client.ContentStore().ReaderAt(ctx, ocispec.Descriptor{Digest: dgst})
	if errdefs.IsNotFound(connection.Native(err)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read blob %s: %w", dgst, connection.Native(err))
	}
	defer r.Close()
	v := dgst.Verifier()
	buf := make([]byte, 1<<20)
	for in := content.NewReader(r); ; {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		n, err := in.Read(buf)
		_, _ = v.Write(buf[:n])
		if err == io.EOF {
			return v.Verified(), nil
		}
		if err != nil {
			return false, fmt.Errorf("read blob %s: %w", dgst, connection.Native(err))
		}
	}
}

// Config is what pulling needs to know.
type Config struct {
	Snapshotter string
	// Snapshotters are others, into which images are unpacked when a container needs them there.
	Snapshotters           []string
	RegistryDir            string // of certs.d directories; "" for none
	DecryptionKeysDir      string // of private keys for encrypted layers; "" for none
	MaxConcurrentDownloads int
	// MaxConcurrentUnpacks is how many layers of one image are unpacked at the same time. More than
	// 1 needs a containerd in this process, and a snapshotter that can put a layer onto others
	// later.
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

// core is what every part of the store has.
type core struct {
	client *connection.Connection
	cfg    Config
	early  *earlyBlobs
	temp   atomic.Uint64 // counts names
}

// content returns the content store, which reads no blob of more than maxBlob bytes whole.
func (c *core) content() content.Store {
	return boundedStore{Store: c.client.ContentStore(), early: c.early}
}

// newKey returns a name of a lease or a snapshot that nothing has had before.
func (c *core) newKey(prefix string) string {
	return fmt.Sprintf("%s%d-%d-%d", prefix, os.Getpid(), time.Now().UnixNano(), c.temp.Add(1))
}

// collect makes containerd collect its garbage now: until then it takes a blob that was removed for
// one that it has.
func (c *core) collect(ctx context.Context) error {
	lease, err := c.client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute))
	if err == nil {
		err = c.client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete)
	}
	return connection.Native(err)
}

// Peers are other nodes that may have a blob.
type Peers interface {
	Copy(ctx context.Context, b peer.Blob, offset int64, to io.Writer, progress func(n int)) (peer.Copied, error)
	Lied(b peer.Blob, from []netip.AddrPort)
}
