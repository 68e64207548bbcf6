// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"berth/internal/heart/state"
)

// registry holds every unit: by ID, in the order of their age, and the sandboxes by the UID of
// their pod. The containers of a pod are found through its sandbox.
type registry struct {
	mu         sync.RWMutex
	byID       map[string]*unit
	byPodUID   map[string]map[string]*unit // sandboxes by pod UID and ID
	sandboxes  []*unit                     // oldest first
	containers []*unit                     // oldest first
}

func newRegistry() *registry {
	return &registry{byID: map[string]*unit{}, byPodUID: map[string]map[string]*unit{}}
}

// get finds a unit by its whole ID.
func (r *registry) get(id string) (*unit, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	u, ok := r.byID[id]
	return u, ok
}

// add makes u known. False: its sandbox is being removed, and takes no more containers.
func (r *registry) add(u *unit) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !u.isSandbox() && !u.pod.members.join(u) {
		return false
	}
	r.byID[u.id] = u
	list := r.list(u)
	i, _ := slices.BinarySearchFunc(*list, u, compareAge)
	*list = slices.Insert(*list, i, u)
	if u.isSandbox() {
		uid := u.podUID()
		if r.byPodUID[uid] == nil {
			r.byPodUID[uid] = map[string]*unit{}
		}
		r.byPodUID[uid][u.id] = u
	}
	return true
}

// drop makes u unknown.
func (r *registry) drop(u *unit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[u.id] != u {
		return
	}
	delete(r.byID, u.id)
	list := r.list(u)
	if i, found := slices.BinarySearchFunc(*list, u, compareAge); found {
		*list = slices.Delete(*list, i, i+1)
	}
	if !u.isSandbox() {
		u.pod.members.leave(u)
		return
	}
	uid := u.podUID()
	delete(r.byPodUID[uid], u.id)
	if len(r.byPodUID[uid]) == 0 {
		delete(r.byPodUID, uid)
	}
}

func (r *registry) list(u *unit) *[]*unit {
	if u.isSandbox() {
		return &r.sandboxes
	}
	return &r.containers
}

// findSandbox and findContainer resolve an ID, or an unambiguous prefix of one, as people type it.
func (r *registry) findSandbox(id string) (*unit, error)   { return r.find(id, true) }
func (r *registry) findContainer(id string) (*unit, error) { return r.find(id, false) }

func (r *registry) find(id string, sandbox bool) (*unit, error) {
	kind := "container"
	if sandbox {
		kind = "sandbox"
	}
	if id == "" {
		return nil, fmt.Errorf("find %s: no ID was given: %w", kind, errdefs.ErrInvalidArgument)
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if u, ok := r.byID[id]; ok && u.isSandbox() == sandbox {
		return u, nil
	}
	var found *unit
	for full, u := range r.byID {
		if u.isSandbox() != sandbox || !strings.HasPrefix(full, id) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%s %q: more than one has an ID that begins so; give more of it: %w", kind, id, errdefs.ErrInvalidArgument)
		}
		found = u
	}
	if found == nil {
		return nil, fmt.Errorf("%s %q: %w", kind, id, errdefs.ErrNotFound)
	}
	return found, nil
}

// allSandboxes lists the sandboxes, oldest first.
func (r *registry) allSandboxes() []*unit {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.sandboxes)
}

// allContainers lists the containers, oldest first.
func (r *registry) allContainers() []*unit {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.containers)
}

// all lists the sandboxes, then the containers.
func (r *registry) all() []*unit {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Concat(r.sandboxes, r.containers)
}

// statuses returns the statuses of all units, by ID.
func (r *registry) statuses() map[string]*state.Status {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make(map[string]*state.Status, len(r.byID))
	for id, u := range r.byID {
		all[id] = u.now()
	}
	return all
}

// hasSibling reports whether the pod of the sandbox u, by its UID, has another sandbox.
func (r *registry) hasSibling(u *unit) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for id := range r.byPodUID[u.podUID()] {
		if id != u.id {
			return true
		}
	}
	return false
}
