// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
)

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
func (i *Store) lease(ctx context.Context) (_ context.Context, done func(), _ error) {
	return i.leaseFor(ctx, "")
}

// leaseFor does what lease does, for a pull of ref. A berth that comes after a kill keeps the lease
// for the next pull of ref.
func (i *Store) leaseFor(ctx context.Context, ref string) (_ context.Context, done func(), _ error) {
	labels := map[string]string{connection.LabelOwner: i.cfg.Owner}
	if len(ref) > 0 && len(ref) <= maxPullLabel {
		labels[labelPull] = ref
	}
	key := fmt.Sprintf("%s%d-%d-%d", jobPrefix, os.Getpid(), time.Now().UnixNano(), i.temp.Add(1))
	i.jobs.Store(key, nil)
	leased, _, err := i.client.WithLease(connection.Namespaced(ctx), leases.WithID(key), leases.WithLabels(labels), leases.WithExpiration(jobLease))
	if err != nil {
		i.jobs.Delete(key)
		return nil, nil, connection.Native(err)
	}
	return leased, func() {
		if i.held(key) {
			return
		}
		ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), unleaseTimeout)
		defer cancel()
		var opts []leases.DeleteOpt
		if i.discards.Load() {
			opts = append(opts, leases.SynchronousDelete) // else the blobs stay until containerd collects next
		}
		if err := i.unleaseWith(ctx, key, opts...); err != nil {
			i.cfg.Logger.Warn("lease of an image cannot be deleted now, the next sweep does, or containerd once it has ended", "lease", key, "err", err)
			i.jobs.Store(key, heldLease{})
			return
		}
		i.jobs.Delete(key)
	}, nil
}

func (i *Store) unlease(ctx context.Context, key string) error { return i.unleaseWith(ctx, key) }

// unleaseNow has containerd collect what the lease kept before it answers.
func (i *Store) unleaseNow(ctx context.Context, key string) error {
	return i.unleaseWith(ctx, key, leases.SynchronousDelete)
}

func (i *Store) unleaseWith(ctx context.Context, key string, opts ...leases.DeleteOpt) error {
	if err := connection.Native(i.client.LeasesService().Delete(ctx, leases.Lease{ID: key}, opts...)); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete lease %s: %w", key, err)
	}
	return nil
}
