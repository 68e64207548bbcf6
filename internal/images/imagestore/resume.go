// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/base/errkind"
	"berth/internal/images/image"
)

// resumable is how long the blobs of a pull that was cut off are kept for the next one of the same
// name: the kubelet tries again within five minutes.
const resumable = 10 * time.Minute

// The blobs that are kept for pulls that may come take a quarter of the file system at most, and
// nothing is kept while less than a tenth of it is free, or less than reserve on a large one: the
// kubelet evicts pods when about that is left.
const (
	keptShare    = 4
	reserveShare = 10
	reserve      = 10 << 30 // bytes
)

// hold keeps the blobs of a pull of ref if the way to the registry was cut off: containerd then
// goes on where it was. After any other failure nothing is kept, since the next pull would end as
// this one did. If the disk is full, the blobs of other pulls go as well.
func (js *jobs) hold(ctx context.Context, ref string, err error) {
	own, leased := leases.FromContext(ctx)
	if !leased {
		return
	}
	cause := err
	if ctx.Err() != nil {
		cause = errors.Join(context.Cause(ctx), err)
	}
	full := errkind.Full(err)
	switch reason, cut := cutOff(cause); {
	case err == nil:
	case ref != "" && cut && !full:
		js.byKey.Store(own, heldLease{ref, reason, time.Now().Add(resumable)})
	default:
		js.byKey.Store(own, heldLease{ref: ref}) // bound deletes it, and does not leave that to containerd
	}
	if full {
		js.abort(ctx, own)
	}
	if ref != "" && !js.swept.Load() {
		js.inherit(ctx, ref)
	}
	js.dropHeld(ctx, own, func(_ string, h heldLease) bool { return full || ref != "" && h.ref == ref })
	js.bound(ctx)
}

// abort removes the blobs of a lease of which not all is here, and their files at once. The records
// of containerd are on the same disk, and a lease cannot be deleted from them while it is full.
func (js *jobs) abort(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
	defer cancel()
	all, err := js.client.LeasesService().ListResources(ctx, leases.Lease{ID: key})
	for _, r := range all {
		if r.Type == ingests {
			err = errors.Join(err, js.client.ContentStore().Abort(ctx, r.ID))
		}
	}
	if err != nil {
		js.cfg.Logger.Debug("what was fetched is left to containerd's garbage collection", "lease", key, "err", err)
	}
}

// ingests is the type of a lease's resource that is a blob of which not all is here.
const ingests = "ingests"

// kept returns the leases that are kept for pulls that may come, the one that goes first first.
func (js *jobs) kept() []string {
	until := map[string]time.Time{}
	js.byKey.Range(func(k, v any) bool {
		if h, ok := v.(heldLease); ok && js.held(k.(string)) {
			until[k.(string)] = h.until
		}
		return true
	})
	return slices.SortedFunc(maps.Keys(until), func(a, b string) int {
		return cmp.Or(until[a].Compare(until[b]), strings.Compare(a, b))
	})
}

// bound deletes leases that nothing needs any more, and of those that are kept the oldest ones,
// until the others have their share of the file system and leave the reserve free. If that cannot
// be told, none is kept.
func (js *jobs) bound(ctx context.Context) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
	defer cancel()
	js.dropHeld(ctx, "", func(string, heldLease) bool { return false })
	for _, oldest := range js.kept() {
		if js.fits(ctx) {
			return
		}
		js.cfg.Logger.Info("what a pull that was cut off had fetched is not kept: the disk needs the room", "lease", oldest)
		js.dropHeld(ctx, "", func(key string, _ heldLease) bool { return key == oldest })
	}
}

// fits reports whether all that is kept may stay.
func (js *jobs) fits(ctx context.Context) bool {
	total, free, err := js.space(ctx)
	if err != nil {
		return false
	}
	kept, _, err := js.keptBytes(ctx, image.Contents{})
	if err != nil {
		return false
	}
	var n int64
	for _, k := range kept {
		n += k.Bytes
	}
	return n <= total/keptShare && free >= min(total/reserveShare, reserve)
}

// fetchReserve is how many bytes of the disk a pull leaves free, or a fiftieth of a small disk: the
// records of pods may be on it.
const fetchReserve = 1 << 30

// room returns why a blob of which so many bytes are to come is not fetched: it would not leave the
// reserve free. If that cannot be told, the disk decides.
func (js *jobs) room(ctx context.Context, size int64) error {
	total, free, err := js.space(ctx)
	if keep := min(total/50, fetchReserve); err == nil && free-size < keep {
		return fmt.Errorf("%d MiB are to be fetched, %d MiB of the disk are free, and %d MiB stay free; remove images or files: %w",
			size>>20, free>>20, keep>>20, unix.ENOSPC)
	}
	return nil
}

// space returns the size of the file system that blobs are on, and how much of it is free, in
// bytes.
func (js *jobs) space(ctx context.Context) (total, free int64, err error) {
	root := js.cfg.Root
	if root == "" {
		if root, err = js.client.ContentRoot(ctx); err != nil {
			return 0, 0, err
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: root, Err: err}
	}
	return int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize, nil // no disk has that many blocks
}

// keptBytes returns the blobs that are kept for pulls that may come, and how many bytes of
// incomplete blobs there are. A blob of an image in c does not count.
func (js *jobs) keptBytes(ctx context.Context, c image.Contents) (all []image.Kept, coming int64, err error) {
	begun, err := js.client.ContentStore().ListStatuses(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list blobs that are fetched: %w", connection.Native(err))
	}
	sizes := map[string]int64{} // by type and ID, without those that were counted
	for _, st := range begun {
		sizes[ingests+"/"+st.Ref] = st.Offset
		coming += st.Offset
	}
	if c.Images == nil {
		if c.Blobs, err = js.blobSizes(ctx); err != nil {
			return nil, 0, err
		}
	}
	for d, n := range c.Blobs {
		sizes["content/"+d] = n
	}
	for name, l := range c.Layers {
		sizes["snapshots/"+js.cfg.Snapshotter+"/"+name] = l.Size
	}
	for _, p := range c.Images {
		for d := range p.Blobs {
			delete(sizes, "content/"+d)
		}
		c.Chain(p.ChainID, func(name string, _ image.Layer) {
			delete(sizes, "snapshots/"+js.cfg.Snapshotter+"/"+name)
		})
	}
	for _, key := range js.kept() {
		v, _ := js.byKey.Load(key)
		h, ok := v.(heldLease)
		if !ok {
			continue
		}
		k := image.Kept{Ref: h.ref, Reason: h.reason, Until: h.until}
		has, err := js.client.LeasesService().ListResources(ctx, leases.Lease{ID: key})
		if errdefs.IsNotFound(connection.Native(err)) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("list what lease %s keeps: %w", key, connection.Native(err))
		}
		for _, r := range has {
			name := r.Type + "/" + r.ID
			k.Bytes += sizes[name]
			delete(sizes, name)
		}
		all = append(all, k)
	}
	return all, coming, nil
}

// DropKept removes the blobs that are kept of pulls that were cut off.
func (js *jobs) DropKept(ctx context.Context) error {
	js.dropHeld(ctx, "", func(string, heldLease) bool { return true })
	if left := js.kept(); len(left) > 0 {
		return fmt.Errorf("%d leases of pulls that were cut off cannot be deleted now: %w", len(left), errdefs.ErrUnavailable)
	}
	return nil
}

// overdue are the leases that nothing needs any more.
func (js *jobs) overdue() map[string]bool {
	keys := map[string]bool{}
	js.byKey.Range(func(k, v any) bool {
		if _, ok := v.(heldLease); ok && !js.held(k.(string)) {
			keys[k.(string)] = true
		}
		return true
	})
	return keys
}

// dropHeld deletes the leases that earlier pulls have left and that are to go, and those that are
// overdue, but not own, which is the lease of the last pull. containerd gives the space back at
// once. A lease that cannot be deleted now is left to the next pull, to the next measurement or to
// the next sweep.
func (js *jobs) dropHeld(ctx context.Context, own string, goes func(key string, h heldLease) bool) {
	js.byKey.Range(func(k, v any) bool {
		key := k.(string)
		h, ok := v.(heldLease)
		if !ok || key == own || !goes(key, h) && time.Now().Before(h.until) {
			return true
		}
		ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
		defer cancel()
		if err := js.unlease(ctx, key, leases.SynchronousDelete); err != nil {
			js.cfg.Logger.Warn("lease of a pull that has failed cannot be deleted now, the next measurement does, or containerd once it has ended", "lease", key, "err", err)
			js.byKey.Store(key, heldLease{ref: h.ref})
			return true
		}
		js.byKey.Delete(key)
		return true
	})
}

// inherit learns the leases that an earlier berth has left of pulls of ref. A pull can end before
// the first sweep, and the sweep would keep them for a pull that has been. If containerd cannot be
// asked, the sweep finds them.
func (js *jobs) inherit(ctx context.Context, ref string) {
	if len(ref) > maxPullLabel {
		return
	}
	ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
	defer cancel()
	all, err := js.client.LeasesService().List(ctx, fmt.Sprintf("id~=^%s,labels.%q==%q,labels.%q==%q",
		jobPrefix, connection.LabelOwner, js.cfg.Owner, labelPull, ref))
	if err != nil {
		js.cfg.Logger.Debug("leases of an earlier berth are left to the sweep", "image", ref, "err", err)
		return
	}
	for _, l := range all {
		js.byKey.LoadOrStore(l.ID, heldLease{ref: ref})
	}
}
