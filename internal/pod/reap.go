// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/logs"
	"berth/internal/network"
)

// strays are what is ours outside and has no record. berth's own order of doing things leaves none; a restored backup does, and
// so does a call to containerd that berth had given up and that was carried out all the same.
type strays struct {
	sync.Mutex
	byID    map[string]stray // being reaped
	damaged map[string]bool  // records that cannot be read: what is theirs is left alone
	seen    map[string]bool  // without a record when last looked
}

// stray is what one ID has outside.
type stray struct {
	snapshotter string // of its writable layer; "" for none
	pinned      bool   // a network namespace
	orphan      bool   // a task alone: it does not say whose it was
}

// findStrays looks for strays and has each reaped on a lane of its own. Unless all are sure, only those that had no record the
// last time either are: a creation in flight may have been listed between its end and its record's.
func (c *Controller) findStrays(ctx context.Context, inv Inventory, sure bool) {
	found := map[string]stray{}
	for id := range inv.Orphans {
		found[id] = stray{orphan: true}
	}
	for id := range inv.Containers {
		found[id] = stray{}
	}
	for id := range inv.Sandboxes {
		found[id] = stray{}
	}
	for id, snapshotter := range inv.Snapshots {
		found[id] = stray{snapshotter: snapshotter}
	}
	pins, err := c.network.Pinned(ctx)
	if err != nil {
		c.obs.Event("", "network namespaces cannot be listed", err)
	}
	for _, id := range pins {
		s := found[id]
		s.pinned = true
		found[id] = s
	}
	for _, base := range []string{filepath.Join(c.cfg.State, "sandboxes"), filepath.Join(c.cfg.State, "io"), filepath.Join(c.cfg.Root, "volumes")} {
		entries, _ := os.ReadDir(base) // absent: nothing was made yet
		for _, e := range entries {
			if _, ok := found[e.Name()]; !ok {
				found[e.Name()] = stray{}
			}
		}
	}

	c.strays.Lock()
	defer c.strays.Unlock()
	last := c.strays.seen
	c.strays.seen = map[string]bool{}
	for id, s := range found {
		if _, ok := c.unit(id); ok || c.strays.damaged[id] {
			continue
		}
		c.strays.seen[id] = true
		if sure && !s.orphan || last[id] {
			c.strays.byID[id] = s
			c.lanes.Offer(id, StepReap)
		}
	}
}

// reap gives back what one stray has.
func (c *Controller) reap(ctx context.Context, id string) error {
	c.strays.Lock()
	s, ok := c.strays.byID[id]
	c.strays.Unlock()
	if _, known := c.unit(id); known || !ok {
		return nil
	}
	c.obs.Event(id, "ours without a record: reaping", nil)
	absent := func(err error) error {
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	err := absent(c.runtime.KillTask(ctx, id, unix.SIGKILL))
	if err == nil {
		_, _ = c.runtime.WaitTask(ctx, id) // if the shim says nothing, the deletion will tell
		err = absent(c.runtime.DeleteTask(ctx, id))
	}
	if err != nil {
		return fmt.Errorf("reap %s: %w", id, err)
	}
	errs := []error{absent(c.runtime.DeleteContainer(ctx, id))}
	if s.snapshotter != "" {
		errs = append(errs, absent(c.runtime.DeleteSnapshot(ctx, s.snapshotter, id)))
	}
	errs = append(errs, absent(c.runtime.DeleteSandbox(ctx, id)))
	if s.pinned {
		path := c.network.PathFor(id)
		if err := c.network.Teardown(ctx, network.Pod{ID: id, NetNS: path}, network.Result{}); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, c.network.RemoveNS(ctx, path))
		}
	}
	if err := unmount(filepath.Join(c.sandboxDir(id), "shm")); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, os.RemoveAll(c.sandboxDir(id)), logs.RemoveAll(c.ioDir(id)), os.RemoveAll(c.volumeDir(id)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("reap %s: %w", id, err)
	}
	c.strays.Lock()
	delete(c.strays.byID, id)
	c.strays.Unlock()
	c.obs.Event(id, "ours without a record: reaped", nil)
	c.obs.Repaired("stray")
	return nil
}

// unmount is content when nothing is mounted there.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
