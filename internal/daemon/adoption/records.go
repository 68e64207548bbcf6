// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/base/clock"
	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
)

// records are berth's records while pods are moved: whose each pod is. No other process has them
// open.
type records struct {
	owner  string       // the ID of this berth; "" where a dry run has no records
	store  *state.Store // nil: a dry run, and there is no other use of it
	loaded state.Loaded // as the records were at the beginning

	mu  sync.Mutex
	now map[string]adopt.Record // by pod, as they are now
}

// openRecords opens the records. A dry run makes none, and does without those that a berth has
// open.
func openRecords(root string, r adopt.Request) (*records, error) {
	recs := &records{now: map[string]adopt.Record{}}
	if r.DryRun {
		if _, err := os.Stat(filepath.Join(root, "berth.db")); errors.Is(err, fs.ErrNotExist) {
			return recs, nil
		}
	}
	store, err := state.Open(root)
	switch {
	case errors.Is(err, state.ErrInUse) && r.DryRun && !r.Back:
		return recs, nil
	case errors.Is(err, state.ErrInUse):
		return nil, fmt.Errorf("berth serves, and pods are adopted while it does not: stop it (systemctl stop berth): %w", err)
	case err != nil:
		return nil, err
	}
	recs.store, recs.owner = store, store.Owner()
	if recs.loaded, err = store.Load(); err != nil {
		return nil, errors.Join(err, recs.close())
	}
	for _, r := range adopt.Records(recs.loaded) {
		recs.now[r.ID] = r
	}
	return recs, nil
}

// close closes the records, for a berth that is to be started for example. It can be called again.
func (r *records) close() error {
	if r.store == nil {
		return nil
	}
	s := r.store
	r.store = nil
	return s.Close()
}

// units is how many pods and containers were on record at the beginning.
func (r *records) units() int {
	return len(r.loaded.Sandboxes) + len(r.loaded.Containers) + len(r.loaded.Damaged)
}

// of returns the record of a pod, as it is now.
func (r *records) of(id string) (adopt.Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.now[id]
	return rec, ok
}

func (r *records) ownerOf(id string) state.Owner {
	rec, _ := r.of(id)
	return rec.Sandbox.Status.Owner
}

// Note commits who owns a pod that has a record. It is a part of [adopt.Outside].
func (r *records) Note(_ context.Context, id string, owner state.Owner) error {
	rec, known := r.of(id)
	if owner == state.OwnerPlugIn {
		changes := []state.Change{state.DeleteSandbox(id)}
		for _, ct := range rec.Containers {
			changes = append(changes, state.DeleteContainer(ct.ID))
		}
		return r.commit(id, nil, changes)
	}
	if !known {
		return fmt.Errorf("there is no record of it: %w", errdefs.ErrNotFound)
	}
	rec.Sandbox.Status.Owner = owner
	return r.commit(id, &rec, []state.Change{state.SandboxStatus(id, rec.Sandbox.Status)})
}

// commit makes changes after which a pod is on record as after; nil: it is not.
func (r *records) commit(id string, after *adopt.Record, changes []state.Change) error {
	if err := r.store.Commit(changes...); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if after == nil {
		delete(r.now, id)
		return nil
	}
	r.now[id] = *after
	return nil
}

// begin puts a pod of a plan on record, as one that is being taken over. What was taken already
// before an adoption, or its way back, was cut off, stays as it is on record: nobody else knows it
// better.
func (r *records) begin(p adopt.Pod, kills oomKills, now clock.Instant) error {
	before, _ := r.of(p.ID)
	known := map[string]state.ContainerRecord{}
	for _, ct := range before.Containers {
		known[ct.ID] = ct
	}
	after := adopt.Record{ID: p.ID, Namespace: p.Namespace, Name: p.Name, State: p.State}
	after.Sandbox = state.SandboxRecord{Sandbox: p.Sandbox, Status: p.Status}
	kills.identify(p.ID, &after.Sandbox.Status, now)
	changes := []state.Change{state.NewSandbox(p.Sandbox, after.Sandbox.Status)}
	for _, ct := range p.Containers {
		rec, ok := known[ct.ID]
		delete(known, ct.ID)
		if !ok || !ct.Taken {
			rec = state.ContainerRecord{Container: ct.Container, Status: ct.Status}
			kills.identify(ct.ID, &rec.Status, now)
			changes = append(changes, state.NewContainer(rec.Container, rec.Status))
		}
		after.Containers = append(after.Containers, rec)
	}
	for id := range known { // the plug-in has removed it since
		changes = append(changes, state.DeleteContainer(id))
	}
	return r.commit(p.ID, &after, changes)
}
