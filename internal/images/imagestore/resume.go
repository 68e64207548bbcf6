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
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/base/connection"
	"berth/internal/base/errkind"
	"berth/internal/images/image"
)

// resumable is how long what a pull that was cut off had fetched is kept for the next one of the
// same name: the kubelet tries again within five minutes.
const resumable = 10 * time.Minute

// What is kept for pulls that may come takes a quarter of the file system at most, and nothing is
// kept while less than a tenth of it is free, or less than reserve on a large one: the kubelet
// evicts pods when about that is left.
const (
	keptShare    = 4
	reserveShare = 10
	reserve      = 10 << 30 // bytes
)

// heldLease is the lease of a pull that has failed. It is the value of its key in Store.jobs.
type heldLease struct {
	ref    string
	reason string    // why it is kept
	until  time.Time // the zero time: nothing needs it, and it is to be deleted
}

// hold keeps what a pull of ref has fetched if the way to the registry was cut off: containerd then
// goes on where it was. After any other failure nothing is kept, since the next pull would end as
// this one did. If the disk is full, what other pulls have left goes as well.
func (i *Store) hold(ctx context.Context, ref string, err error) {
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
		i.jobs.Store(own, heldLease{ref, reason, time.Now().Add(resumable)})
	default:
		i.jobs.Store(own, heldLease{ref: ref}) // bound deletes it, and does not leave that to containerd
	}
	if full {
		i.abort(ctx, own)
	}
	if ref != "" && !i.swept.Load() {
		i.inherit(ctx, ref)
	}
	i.dropHeld(ctx, own, func(_ string, h heldLease) bool { return full || ref != "" && h.ref == ref })
	i.bound(ctx)
}

// abort removes the blobs of a lease of which not all is here, and their files at once. The records
// of containerd are on the same disk, and a lease cannot be deleted from them while it is full.
func (i *Store) abort(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
	defer cancel()
	all, err := i.client.LeasesService().ListResources(ctx, leases.Lease{ID: key})
	for _, r := range all {
		if r.Type == ingests {
			err = errors.Join(err, i.client.ContentStore().Abort(ctx, r.ID))
		}
	}
	if err != nil {
		i.cfg.Logger.Debug("what was fetched is left to containerd's garbage collection", "lease", key, "err", err)
	}
}

// ingests is the type of a lease's resource that is a blob of which not all is here.
const ingests = "ingests"

// kept returns the leases that are kept for pulls that may come, the one that goes first first.
func (i *Store) kept() []string {
	until := map[string]time.Time{}
	i.jobs.Range(func(k, v any) bool {
		if h, ok := v.(heldLease); ok && i.held(k.(string)) {
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
func (i *Store) bound(ctx context.Context) {
	ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
	defer cancel()
	i.dropHeld(ctx, "", func(string, heldLease) bool { return false })
	for _, oldest := range i.kept() {
		if i.fits(ctx) {
			return
		}
		i.cfg.Logger.Info("what a pull that was cut off had fetched is not kept: the disk needs the room", "lease", oldest)
		i.dropHeld(ctx, "", func(key string, _ heldLease) bool { return key == oldest })
	}
}

// fits reports whether all that is kept may stay.
func (i *Store) fits(ctx context.Context) bool {
	total, free, err := i.space(ctx)
	if err != nil {
		return false
	}
	kept, _, err := i.keptBytes(ctx, image.Contents{})
	if err != nil {
		return false
	}
	var n int64
	for _, k := range kept {
		n += k.Bytes
	}
	return n <= total/keptShare && free >= min(total/reserveShare, reserve)
}

// space returns the size of the file system that blobs are on, and how much of it is free, in
// bytes.
func (i *Store) space(ctx context.Context) (total, free int64, err error) {
	root := i.cfg.Root
	if root == "" {
		if root, err = i.client.ContentRoot(ctx); err != nil {
			return 0, 0, err
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: root, Err: err}
	}
	return int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize, nil //nolint:gosec // no disk has that many blocks
}

// keptBytes returns what is kept for pulls that may come, and how many bytes there are of all blobs
// of which not all is here. What an image of c has as well does not count.
func (i *Store) keptBytes(ctx context.Context, c image.Contents) (all []image.Kept, coming int64, err error) {
	begun, err := i.client.ContentStore().ListStatuses(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("list blobs that are fetched: %w", connection.Native(err))
	}
	sizes := map[string]int64{} // by type and ID, without those that were counted
	for _, st := range begun {
		sizes[ingests+"/"+st.Ref] = st.Offset
		coming += st.Offset
	}
	if c.Images == nil {
		if c.Blobs, err = i.blobs(ctx); err != nil {
			return nil, 0, err
		}
	}
	for d, n := range c.Blobs {
		sizes["content/"+d] = n
	}
	for name, l := range c.Layers {
		sizes["snapshots/"+i.cfg.Snapshotter+"/"+name] = l.Size
	}
	for _, p := range c.Images {
		for d := range p.Blobs {
			delete(sizes, "content/"+d)
		}
		c.Chain(p.ChainID, func(name string, _ image.Layer) {
			delete(sizes, "snapshots/"+i.cfg.Snapshotter+"/"+name)
		})
	}
	for _, key := range i.kept() {
		v, _ := i.jobs.Load(key)
		h, ok := v.(heldLease)
		if !ok {
			continue
		}
		k := image.Kept{Ref: h.ref, Reason: h.reason, Until: h.until}
		has, err := i.client.LeasesService().ListResources(ctx, leases.Lease{ID: key})
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

// DropKept removes what pulls that were cut off have left for the next ones.
func (i *Store) DropKept(ctx context.Context) error {
	i.dropHeld(ctx, "", func(string, heldLease) bool { return true })
	if left := i.kept(); len(left) > 0 {
		return fmt.Errorf("%d leases of pulls that were cut off cannot be deleted now: %w", len(left), errdefs.ErrUnavailable)
	}
	return nil
}

// held reports whether a lease is kept for the next pull, now.
func (i *Store) held(key string) bool {
	v, _ := i.jobs.Load(key)
	h, ok := v.(heldLease)
	return ok && time.Now().Before(h.until)
}

// overdue are the leases that nothing needs any more.
func (i *Store) overdue() map[string]bool {
	keys := map[string]bool{}
	i.jobs.Range(func(k, v any) bool {
		if _, ok := v.(heldLease); ok && !i.held(k.(string)) {
			keys[k.(string)] = true
		}
		return true
	})
	return keys
}

// dropHeld deletes the leases that earlier pulls have left and that are to go, and those that are
// overdue, but not own: the last pull has what there is. containerd gives the space back at once. A
// lease that cannot be deleted now is left to the next pull, to the next measurement or to the next
// sweep.
func (i *Store) dropHeld(ctx context.Context, own string, goes func(key string, h heldLease) bool) {
	i.jobs.Range(func(k, v any) bool {
		key := k.(string)
		h, ok := v.(heldLease)
		if !ok || key == own || !goes(key, h) && time.Now().Before(h.until) {
			return true
		}
		ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
		defer cancel()
		if err := i.unleaseNow(ctx, key); err != nil {
			i.cfg.Logger.Warn("lease of a pull that has failed cannot be deleted now, the next measurement does, or containerd once it has ended", "lease", key, "err", err)
			i.jobs.Store(key, heldLease{ref: h.ref})
			return true
		}
		i.jobs.Delete(key)
		return true
	})
}

// inherit learns the leases that an earlier berth has left of pulls of ref. A pull can end before
// the first sweep, and the sweep would keep them for a pull that has been. If containerd cannot be
// asked, the sweep finds them.
func (i *Store) inherit(ctx context.Context, ref string) {
	if len(ref) > maxPullLabel {
		return
	}
	ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
	defer cancel()
	all, err := i.client.LeasesService().List(ctx, fmt.Sprintf("id~=^%s,labels.%q==%q,labels.%q==%q",
		jobPrefix, connection.LabelOwner, i.cfg.Owner, labelPull, ref))
	if err != nil {
		i.cfg.Logger.Debug("leases of an earlier berth are left to the sweep", "image", ref, "err", err)
		return
	}
	for _, l := range all {
		i.jobs.LoadOrStore(l.ID, heldLease{ref: ref})
	}
}

// resumes notes what has been fetched of blobs in part before a pull, and which blobs w learns that
// the pull needs. It returns what says whether there was a beginning of one of them: if the pull
// fails over the digest of a blob, that beginning may be what is wrong, as after a power cut, and
// not the registry. It is removed then ([blobWriter]), and the pull can be repeated.
func (i *Store) resumes(ctx context.Context, w *image.Watch) func() bool {
	before := map[string]bool{} // blobs
	all, err := i.client.ContentStore().ListStatuses(ctx)
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

// blobOf returns the digest of the blob that is being fetched under a key, which is its kind, a
// hyphen, perhaps a name and @, and its digest.
func blobOf(key string) string {
	_, key, _ = strings.Cut(key, "-")
	return key[strings.LastIndexByte(key, '@')+1:]
}
