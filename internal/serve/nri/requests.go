// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"sync"

	"github.com/containerd/nri/pkg/api"

	"berth/internal/base/retry"
)

const (
	// maxRequests is how many updates and evictions of plug-ins may wait to be carried out, and
	// maxPerContainer how many of them about one container.
	maxRequests     = 1000
	maxPerContainer = 100
	// requestsAtOnce is how many are carried out at the same time, each about another container.
	requestsAtOnce = 64
)

// request is something that a plug-in asks for: an update, or the eviction of a container.
type request struct {
	update *api.ContainerUpdate
	evict  *api.ContainerEviction
}

// about returns the container of a request.
func (r request) about() string {
	if r.evict != nil {
		return r.evict.GetContainerId()
	}
	return r.update.GetContainerId()
}

// requests are the queued requests of plug-ins: those about one container are carried out in order,
// and those about different ones side by side, so that a shim that hangs holds up its own container
// alone.
type requests struct {
	more retry.Wake // one value: there may be something to begin
	mu   struct {
		sync.Mutex
		count int // that wait
		// waiting requests, by container; an empty list while one is carried out
		byID  map[string][]request
		ready []string // containers of which nothing is carried out, in the order of their turn
	}
}

func newRequests() *requests {
	q := &requests{more: retry.NewWake()}
	q.mu.byID = map[string][]request{}
	return q
}

// offer adds a request, unless too many wait already.
func (q *requests) offer(r request) (taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := r.about()
	list, known := q.mu.byID[id]
	if q.mu.count >= maxRequests || len(list) >= maxPerContainer {
		return false
	}
	q.mu.count++
	q.mu.byID[id] = append(list, r)
	if !known {
		q.readyLocked(id)
	}
	return true
}

func (q *requests) readyLocked(id string) {
	q.mu.ready = append(q.mu.ready, id)
	q.more.Up()
}

// next takes the request whose turn it is. done has to be called with its container.
func (q *requests) next() (r request, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.ready) == 0 {
		return request{}, false
	}
	id := q.mu.ready[0]
	q.mu.ready = q.mu.ready[1:]
	list := q.mu.byID[id]
	q.mu.byID[id] = list[1:]
	q.mu.count--
	return list[0], true
}

// done notes that a request about a container was carried out.
func (q *requests) done(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.byID[id]) == 0 {
		delete(q.mu.byID, id)
		return
	}
	q.readyLocked(id)
}

// run carries out requests until ctx ends, and waits for those that have begun.
func (q *requests) run(ctx context.Context, carryOut func(ctx context.Context, r request)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, requestsAtOnce)
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		r, ok := q.next()
		if !ok {
			<-slots
			select {
			case <-q.more:
			case <-ctx.Done():
			}
			continue
		}
		wg.Go(func() {
			defer func() { q.done(r.about()); <-slots }()
			carryOut(ctx, r)
		})
	}
}
