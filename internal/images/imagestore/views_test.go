// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// slow is a containerd that makes leases once goOn is closed, also for callers that have gone.
type slow struct {
	leases.Manager
	snapshots.Snapshotter
	goOn    chan struct{}
	leases  map[string]bool
	deleted map[string]bool // views
}

func (s *slow) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	var l leases.Lease
	for _, o := range opts {
		if err := o(&l); err != nil {
			return l, err
		}
	}
	made := make(chan struct{})
	go func() {
		<-s.goOn
		s.leases[l.ID] = true
		close(made)
	}()
	select {
	case <-made:
		return l, nil
	case <-ctx.Done():
		return l, ctx.Err()
	}
}

func (s *slow) Delete(_ context.Context, l leases.Lease, _ ...leases.DeleteOpt) error {
	if !s.leases[l.ID] {
		return errdefs.ErrNotFound
	}
	delete(s.leases, l.ID)
	return nil
}

func (s *slow) View(_ context.Context, key, _ string, _ ...snapshots.Opt) ([]mount.Mount, error) {
	s.deleted[key] = false
	return nil, nil
}

func (s *slow) Remove(_ context.Context, key string) error {
	s.deleted[key] = true
	return nil
}

// PROPERTIES 6: a caller gave up while containerd made the lease of a view; the lease was deleted
// before it was made, and stayed.
func TestAViewWhoseCallerHasGoneLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{goOn: make(chan struct{}), leases: map[string]bool{}, deleted: map[string]bool{}}
		client, err := containerd.New("", containerd.WithServices(
			containerd.WithLeasesService(s),
			containerd.WithSnapshotters(map[string]snapshots.Snapshotter{"slow": s}),
		))
		if err != nil {
			t.Fatal(err)
		}
		i := open(connection.Through(client), Config{Snapshotter: "slow", Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		viewed := make(chan error, 1)
		go func() {
			viewed <- i.Reader.view(ctx, image.Root{ChainID: "chain"}, func(string) error { return errors.New("nobody waits for this") })
		}()
		synctest.Wait()
		cancel()
		if err := <-viewed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(s.goOn)
		synctest.Wait()
		if len(s.leases) > 0 {
			t.Errorf("left: %v", s.leases)
		}
		for key, gone := range s.deleted {
			if !gone {
				t.Errorf("view %s is left", key)
			}
		}
		i.views.used.Range(func(key, _ any) bool { t.Errorf("%v counts as in use", key); return true })
	})
}

// PROPERTIES 17: berth did not start while something in the directory could not be deleted.
func TestADirectoryOfImagesThatCannotBeDeletedIsOnlyReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	for _, d := range []string{"empty", "full/file"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	if err := prepareMounts(dir, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), dir+"/full") {
		t.Errorf("logged: %q", log.String())
	}
	if _, err := os.Stat(filepath.Join(dir, "empty")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what can be deleted was not: %v", err)
	}
	log.Reset()
	if err := os.RemoveAll(filepath.Join(dir, "full")); err != nil {
		t.Fatal(err)
	}
	if err := prepareMounts(dir, slog.New(slog.NewTextHandler(&log, nil))); err != nil || log.Len() > 0 {
		t.Errorf("an empty directory: %v, logged %q", err, log.String())
	}
}
