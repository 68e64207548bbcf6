// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
)

// jobs are the leases of pulls and imports, with those that are kept after they were cut off.
type jobs struct {
	*core
	byKey    sync.Map    // the leases in use, and those of value heldLease
	swept    atomic.Bool // the leases that an earlier berth has left are in byKey, or gone
	discards atomic.Bool // the compressed layers of new images are not kept
}

// keeping returns the option that decides which blobs of an image that is pulled containerd keeps.
// Without it these are all. Where blobs are discarded, the manifest does not refer to the layers,
// so that containerd collects them once the lease of the pull has ended.
func (js *jobs) keeping() []containerd.RemoteOpt {
	if !js.discards.Load() {
		return nil
	}
	return []containerd.RemoteOpt{containerd.WithChildLabelMap(images.ChildGCLabelsFilterLayers)}
}

// SetDiscard says whether the compressed layers of images that are pulled or imported from now on
// are dropped once they are unpacked.
func (js *jobs) SetDiscard(on bool) { js.discards.Store(on) }

const (
	// jobPrefix begins the names of the leases of pulls and imports.
	jobPrefix = "berth-job-"
	// jobLease is how long containerd keeps the results of a pull or an import if no berth comes
	// back.
	jobLease = 24 * time.Hour
	// labelPull is the label of the lease of a pull: the reference. maxPullLabel bounds it, in
	// bytes: containerd takes 4096 with the name of the label.
	labelPull    = "berth/pull"
	maxPullLabel = 2048
	// unleaseTimeout bounds the deletion of a lease, also after the context of the call has ended:
	// a pull is not to wait for a containerd that hangs once it has ended.
	unleaseTimeout = 10 * time.Second
)

// lease makes containerd keep the results of a pull or an import until the caller calls done. If
// berth is killed before, the next one deletes the lease, but keeps that of a pull for the next pull
// of ref: see [Store.Sweep]. ref is "" for anything else. A lease that is held stays.
func (js *jobs) lease(ctx context.Context, ref string) (_ context.Context, done func(), _ error) {
	labels := map[string]string{connection.LabelOwner: js.cfg.Owner}
	if len(ref) > 0 && len(ref) <= maxPullLabel {
		labels[labelPull] = ref
	}
	key := js.newKey(jobPrefix)
	js.byKey.Store(key, nil)
	leased, _, err := js.client.WithLease(connection.Namespaced(ctx), leases.WithID(key), leases.WithLabels(labels), leases.WithExpiration(jobLease))
	if err != nil {
		js.byKey.Delete(key)
		return nil, nil, connection.Native(err)
	}
	return leased, func() {
		if js.held(key) {
			return
		}
		ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
		defer cancel()
		var opts []leases.DeleteOpt
		if js.discards.Load() {
			opts = append(opts, leases.SynchronousDelete) // else the blobs stay until containerd collects next
		}
		if err := js.unlease(ctx, key, opts...); err != nil {
			js.cfg.Logger.Warn("lease of an image cannot be deleted now, the next sweep does, or containerd once it has ended", "lease", key, "err", err)
			js.byKey.Store(key, heldLease{})
			return
		}
		js.byKey.Delete(key)
	}, nil
}

// unlease deletes a lease. With leases.SynchronousDelete, containerd collects the content of the
// lease before it answers.
func (js *jobs) unlease(ctx context.Context, key string, opts ...leases.DeleteOpt) error {
	if err := connection.Native(js.client.LeasesService().Delete(ctx, leases.Lease{ID: key}, opts...)); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete lease %s: %w", key, err)
	}
	return nil
}

// heldLease is the lease of a pull that has failed. It is the value of its key in Store.jobs.
type heldLease struct {
	ref    string
	reason string    // why it is kept
	until  time.Time // the zero time: nothing needs it, and it is to be deleted
}

// held reports whether a lease is kept for the next pull, now.
func (js *jobs) held(key string) bool {
	v, _ := js.byKey.Load(key)
	h, ok := v.(heldLease)
	return ok && time.Now().Before(h.until)
}
