// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
)

// leaseStore keeps leases as containerd does.
type leaseStore struct {
	leases.Manager
	kept map[string]leases.Lease
}

func (s *leaseStore) Create(_ context.Context, opts ...leases.Opt) (leases.Lease, error) {
	var l leases.Lease
	for _, o := range opts {
		if err := o(&l); err != nil {
			return l, err
		}
	}
	s.kept[l.ID] = l
	return l, nil
}

func (s *leaseStore) Delete(_ context.Context, l leases.Lease, _ ...leases.DeleteOpt) error {
	if _, there := s.kept[l.ID]; !there {
		return errdefs.ErrNotFound
	}
	delete(s.kept, l.ID)
	return nil
}

func (s *leaseStore) List(_ context.Context, fs ...string) ([]leases.Lease, error) {
	filter, err := filters.ParseAll(fs...)
	if err != nil {
		return nil, err
	}
	var found []leases.Lease
	for _, l := range s.kept {
		if filter.Match(filters.AdapterFunc(func(path []string) (string, bool) {
			if path[0] == "id" {
				return l.ID, true
			}
			value, there := l.Labels[strings.Join(path[1:], ".")]
			return value, there
		})) {
			found = append(found, l)
		}
	}
	return found, nil
}

// PROPERTIES 6: the lease of a pull or an import that berth was killed in kept all that had been
// fetched for a day. The next berth deletes it, and neither that of a pull that goes on nor what is
// not its own.
func TestTheLeaseOfAPullThatAKillCutOffIsDeleted(t *testing.T) {
	store := &leaseStore{kept: map[string]leases.Lease{}}
	client, err := containerd.New("", containerd.WithServices(
		containerd.WithLeasesService(store),
		containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"slow": &slow{deleted: map[string]bool{}}}),
	))
	if err != nil {
		t.Fatal(err)
	}
	berth := func(owner string) *Store {
		return open(connection.Through(client), Config{Snapshotter: "slow", Owner: owner, Logger: slog.New(slog.DiscardHandler)})
	}
	lease := func(i *Store) (done func()) {
		t.Helper()
		_, done, err := i.lease(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	lease(berth("this node")) // killed
	other := lease(berth("another"))
	if _, err := store.Create(t.Context(), leases.WithID("somebody's"), leases.WithLabel(connection.LabelOwner, "this node")); err != nil {
		t.Fatal(err)
	}
	next := berth("this node")
	done := lease(next)
	if err := next.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := slices.Collect(maps.Keys(store.kept)); len(left) != 3 {
		t.Errorf("after the sweep there are %q", left)
	}
	done()
	other()
	if left := slices.Collect(maps.Keys(store.kept)); len(left) != 1 {
		t.Errorf("once all is done there are %q", left)
	}
}

// away is a containerd that is away when a lease is to be deleted, and then comes back.
type away struct {
	*leaseStore
	left int // failures to come
}

func (a *away) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	if a.left > 0 {
		a.left--
		return errdefs.ErrUnavailable
	}
	return a.leaseStore.Delete(ctx, l, opts...)
}

// PROPERTIES 6: the lease of a pull that had ended stayed where containerd was away when it was to
// be deleted, and was taken for that of a pull that had been cut off, again after each failure.
func TestALeaseThatCouldNotBeDeletedIsDeletedByASweep(t *testing.T) {
	store := &away{leaseStore: &leaseStore{kept: map[string]leases.Lease{}}, left: 2}
	client, err := containerd.New("", containerd.WithServices(containerd.WithLeasesService(store)))
	if err != nil {
		t.Fatal(err)
	}
	i := open(connection.Through(client), Config{Logger: slog.New(slog.DiscardHandler)})
	_, done, err := i.lease(t.Context(), "example.com/a:1")
	if err != nil {
		t.Fatal(err)
	}
	done()
	if err := i.Sweep(t.Context()); err == nil {
		t.Error("the sweep did not say that the lease is left")
	}
	if err := i.Sweep(t.Context()); err != nil || len(store.kept) != 0 {
		t.Errorf("%v, left: %v", err, store.kept)
	}
}

// mute is a containerd that deletes a lease, and whose answer is lost.
type mute struct{ *leaseStore }

func (m mute) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	if err := m.leaseStore.Delete(ctx, l, opts...); err != nil {
		return err
	}
	return errdefs.ErrUnavailable
}

// PROPERTIES 12: a lease that was deleted, and of whose deletion no answer came, was remembered until
// the next pull, and for good on a node that imports its images.
func TestALeaseThatIsGoneIsForgottenByASweep(t *testing.T) {
	store := mute{&leaseStore{kept: map[string]leases.Lease{}}}
	client, err := containerd.New("", containerd.WithServices(containerd.WithLeasesService(store)))
	if err != nil {
		t.Fatal(err)
	}
	i := open(connection.Through(client), Config{Logger: slog.New(slog.DiscardHandler)})
	_, ended, err := i.lease(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	_, done, err := i.lease(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	ended()
	if err := i.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	known := 0
	i.byKey.Range(func(any, any) bool { known++; return true })
	if known != 1 || len(store.kept) != 1 {
		t.Errorf("of the one lease that is in use there are %d, and %d are known", len(store.kept), known)
	}
	done()
}

// hungLeases is a containerd that answers no deletion of a lease.
type hungLeases struct{ *leaseStore }

func (hungLeases) Delete(ctx context.Context, _ leases.Lease, _ ...leases.DeleteOpt) error {
	<-ctx.Done()
	return ctx.Err()
}

// A pull that was over waited for as long as containerd hung.
func TestAPullDoesNotWaitForTheDeletionOfItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := containerd.New("", containerd.WithServices(containerd.WithLeasesService(hungLeases{&leaseStore{kept: map[string]leases.Lease{}}})))
		if err != nil {
			t.Fatal(err)
		}
		i := open(connection.Through(client), Config{Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		_, done, err := i.lease(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		ended := make(chan struct{})
		go func() { done(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("it still waits after a minute")
		}
	})
}
