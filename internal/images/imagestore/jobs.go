// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
)

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
	// jobLease is how long containerd keeps what a pull or an import has made if no berth comes back.
	jobLease = 24 * time.Hour
	// labelPull is the label of the lease of a pull: the reference. maxPullLabel bounds it, in bytes:
	// containerd takes 4096 with the name of the label.
	labelPull    = "berth/pull"
	maxPullLabel = 2048
	// unleaseTimeout bounds the deletion of a lease, whatever became of the call that took it: a pull
	// is not to wait for a containerd that hangs once it has ended.
	unleaseTimeout = 10 * time.Second
)

// lease makes containerd keep what a pull or an import makes there, until the caller calls done. If
// berth is killed before, the next one deletes the lease, that of a pull not at once: see
// [Store.Sweep]. A lease that is held stays.
func (js *jobs) lease(ctx context.Context) (_ context.Context, done func(), _ error) {
	return js.leaseFor(ctx, "")
}

// leaseFor does what lease does, for a pull of ref. A berth that comes after a kill keeps the lease
// for the next pull of ref.
func (js *jobs) leaseFor(ctx context.Context, ref string) (_ context.Context, done func(), _ error) {
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
		if err := js.unleaseWith(ctx, key, opts...); err != nil {
			js.cfg.Logger.Warn("lease of an image cannot be deleted now, the next sweep does, or containerd once it has ended", "lease", key, "err", err)
			js.byKey.Store(key, heldLease{})
			return
		}
		js.byKey.Delete(key)
	}, nil
}

func (js *jobs) unlease(ctx context.Context, key string) error { return js.unleaseWith(ctx, key) }

// unleaseNow has containerd collect what the lease kept before it answers.
func (js *jobs) unleaseNow(ctx context.Context, key string) error {
	return js.unleaseWith(ctx, key, leases.SynchronousDelete)
}

func (js *jobs) unleaseWith(ctx context.Context, key string, opts ...leases.DeleteOpt) error {
	if err := connection.Native(js.client.LeasesService().Delete(ctx, leases.Lease{ID: key}, opts...)); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete lease %s: %w", key, err)
	}
	return nil
}
