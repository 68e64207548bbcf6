// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/heart/state"
)

// damaged holds the records that cannot be read whole. Their objects outside are left alone,
// because something may run there. They are listed with their readable fields, in the states
// UNKNOWN and NOTREADY, until a person removes them.
type damaged struct {
	clock *clock.Clock
	obs   Observer

	mu   sync.Mutex
	byID map[string]state.Damaged
}

func (d *damaged) add(rec state.Damaged) {
	d.mu.Lock()
	d.byID[rec.ID] = rec
	d.mu.Unlock()
	d.obs.Note(rec.ID, event.RecordDamaged{Err: rec.Err.Error()})
}

func (d *damaged) has(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.byID[id]
	return ok
}

func (d *damaged) drop(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byID, id)
}

// find returns the record of a kind by its ID, or by the beginning of one that fits no other.
func (d *damaged) find(id string, kind state.Kind) (state.Damaged, bool) {
	var found []state.Damaged
	for _, rec := range d.list(kind) {
		if rec.ID == id {
			return rec, true
		}
		if id != "" && strings.HasPrefix(rec.ID, id) {
			found = append(found, rec)
		}
	}
	if len(found) != 1 {
		return state.Damaged{}, false
	}
	return found[0], true
}

// list returns the records of a kind, by ID.
func (d *damaged) list(kind state.Kind) []state.Damaged {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []state.Damaged
	for rec := range maps.Values(d.byID) {
		if rec.Kind == kind {
			list = append(list, rec)
		}
	}
	slices.SortFunc(list, func(a, b state.Damaged) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// members returns the damaged records of a pod's containers.
func (d *damaged) members(pod string) []state.Damaged {
	return slices.DeleteFunc(d.list(state.KindContainer), func(rec state.Damaged) bool { return rec.Container.PodID != pod })
}

func (d *damaged) sandbox(rec state.Damaged) *runtimeapi.PodSandboxStatus {
	cfg := rec.Sandbox.Config
	return &runtimeapi.PodSandboxStatus{
		Id:             rec.ID,
		Metadata:       orEmpty(cfg.GetMetadata()),
		State:          runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
		CreatedAt:      criTime(d.clock, rec.Sandbox.CreatedAt),
		Labels:         cfg.GetLabels(),
		Annotations:    cfg.GetAnnotations(),
		RuntimeHandler: rec.Sandbox.RuntimeHandler,
		Network:        &runtimeapi.PodSandboxNetworkStatus{},
		Linux:          &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{}},
	}
}

func (d *damaged) container(rec state.Damaged) *runtimeapi.ContainerStatus {
	ct, cfg := rec.Container, rec.Container.Config
	return &runtimeapi.ContainerStatus{
		Id:          rec.ID,
		Metadata:    orEmpty(cfg.GetMetadata()),
		State:       runtimeapi.ContainerState_CONTAINER_UNKNOWN,
		CreatedAt:   criTime(d.clock, ct.CreatedAt),
		Image:       orEmpty(cfg.GetImage()),
		ImageRef:    ct.ImageRef,
		ImageId:     ct.ImageID,
		Labels:      cfg.GetLabels(),
		Annotations: cfg.GetAnnotations(),
		LogPath:     ct.LogPath,
		Reason:      "RecordDamaged",
		Message:     rec.Err.Error(),
	}
}

// orEmpty returns m, or an empty message: clients expect metadata and image to be there.
func orEmpty[T any](m *T) *T {
	if m == nil {
		m = new(T)
	}
	return m
}
