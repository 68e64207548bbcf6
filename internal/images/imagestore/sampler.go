// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"berth/internal/base/connection"
	"berth/internal/images/image"
)

// sampler measures snapshots. A layer of an image never changes and is measured once. The writable
// layer of a container is walked file by file, which may take longer than there is time: each round
// goes on where the last one stopped, so that one large layer does not keep the others from being
// measured. If the statistics of a container have measured its layer, that is taken, and the layer
// is not walked once more.
type sampler struct {
	elsewhere struct { // apart, since a round holds the other lock as long as it takes
		sync.Mutex
		measured map[string]measured // writable layers
	}

	mu        sync.Mutex
	committed map[string]snapshots.Usage
	active    map[string]snapshots.Usage
	next      string // the writable layer to be measured first
}

// measured is the size of a layer as the statistics of its container have measured it.
type measured struct {
	usage snapshots.Usage
	until time.Time // when a round walks the layer itself
}

// Statistics measure the layer of a container that runs every half minute, and one that takes long
// less often: they leave it alone for twenty times as long as that took. Their result is taken for
// twice that, and for measuredLately at least. After that the container does not run any more.
const (
	measuredLately = 90 * time.Second
	measuredRest   = 40
)

func (m *sampler) note(key string, usage snapshots.Usage, holds time.Duration) {
	m.elsewhere.Lock()
	defer m.elsewhere.Unlock()
	if m.elsewhere.measured == nil {
		m.elsewhere.measured = map[string]measured{}
	}
	m.elsewhere.measured[key] = measured{usage, time.Now().Add(holds)}
}

// lately returns the layers with those names that were measured elsewhere lately, and forgets all
// others.
func (m *sampler) lately(names []string) map[string]measured {
	m.elsewhere.Lock()
	defer m.elsewhere.Unlock()
	kept := only(m.elsewhere.measured, names)
	maps.DeleteFunc(kept, func(_ string, u measured) bool { return !time.Now().Before(u.until) })
	m.elsewhere.measured = kept
	return maps.Clone(kept)
}

// measurer is the part of a snapshotter that the sampler uses.
type measurer interface {
	Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error
	Usage(ctx context.Context, key string) (snapshots.Usage, error)
}

func (m *sampler) round(ctx context.Context, sn measurer) (images, containers image.Space, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kinds := map[snapshots.Kind][]string{}
	if err := sn.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		kinds[info.Kind] = append(kinds[info.Kind], info.Name)
		return nil
	}); err != nil {
		return images, containers, fmt.Errorf("list snapshots: %w", connection.Native(err))
	}
	m.committed = only(m.committed, kinds[snapshots.KindCommitted])
	m.active = only(m.active, kinds[snapshots.KindActive])
	for _, name := range kinds[snapshots.KindCommitted] {
		if _, known := m.committed[name]; !known {
			if stopped := measure(ctx, sn, name, m.committed); stopped {
				break
			}
		}
	}
	lately := m.lately(kinds[snapshots.KindActive])
	for name, u := range lately {
		m.active[name] = u.usage
	}
	active := slices.DeleteFunc(kinds[snapshots.KindActive], func(name string) bool {
		_, known := lately[name]
		return known
	})
	slices.Sort(active)
	first, _ := slices.BinarySearch(active, m.next)
	for n := range active {
		name := active[(first+n)%len(active)]
		stopped := measure(ctx, sn, name, m.active)
		m.next = active[(first+n+1)%len(active)]
		if stopped {
			break
		}
	}
	return sum(m.committed), sum(m.active), nil
}

// measure measures one snapshot, and reports whether there is no time for more.
func measure(ctx context.Context, sn measurer, name string, into map[string]snapshots.Usage) (stopped bool) {
	u, err := sn.Usage(ctx, name)
	switch {
	case err == nil:
		into[name] = u
	case errdefs.IsNotFound(connection.Native(err)):
		delete(into, name) // removed meanwhile
	}
	return ctx.Err() != nil
}

// only returns the entries with those names.
func only[T any](all map[string]T, names []string) map[string]T {
	out := make(map[string]T, len(names))
	for _, n := range names {
		if u, ok := all[n]; ok {
			out[n] = u
		}
	}
	return out
}

func sum(all map[string]snapshots.Usage) image.Space {
	var s image.Space
	for _, u := range all {
		s.Bytes += uint64(max(u.Size, 0))
		s.Inodes += uint64(max(u.Inodes, 0))
	}
	return s
}
