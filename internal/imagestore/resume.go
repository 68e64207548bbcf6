// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"berth/internal/connection"
	"berth/internal/image"
)

// resumable is how long what a pull that has failed had fetched is kept for the next one of the
// same name: the kubelet tries again within five minutes.
const resumable = 10 * time.Minute

// heldLease is the lease of a pull that has failed. It is the value of its key in Store.jobs.
type heldLease struct {
	ref   string
	until time.Time // the zero time: nothing needs it, and it is to be deleted
}

// hold keeps what a pull of ref has fetched when it ends with an error that a repetition may not
// end with. containerd then goes on where a blob was cut off. A full disk gets its bytes back at
// once.
func (i *Store) hold(ctx context.Context, ref string, err error) {
	own, leased := leases.FromContext(ctx)
	if !leased {
		return
	}
	switch {
	case err == nil,
		errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT),
		errdefs.IsInvalidArgument(err), errdefs.IsNotFound(err), errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
	default:
		i.jobs.Store(own, heldLease{ref, time.Now().Add(resumable)})
	}
	i.dropHeld(ctx, ref, own)
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

// dropHeld deletes the leases that earlier pulls of ref have left, but not own: the last one has
// what there is. A lease that cannot be deleted now is left to the next pull and the next sweep.
func (i *Store) dropHeld(ctx context.Context, ref, own string) {
	if !i.swept.Load() {
		i.inherit(ctx, ref)
	}
	i.jobs.Range(func(k, v any) bool {
		key := k.(string)
		h, ok := v.(heldLease)
		if !ok || key == own || h.ref != ref && time.Now().Before(h.until) {
			return true
		}
		ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
		defer cancel()
		if err := i.unlease(ctx, key); err != nil {
			i.cfg.Logger.Warn("lease of a pull that has failed cannot be deleted now, the next sweep does, or containerd once it has ended", "lease", key, "err", err)
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
