// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/retry"
)

// Exits remembers when the STOPPED event of each container arrived.
type Exits struct {
	mu   sync.Mutex
	when map[string]time.Time
	more retry.Wake
}

// WatchExits subscribes to container events until ctx ends.
func WatchExits(ctx context.Context, c runtimeapi.RuntimeServiceClient) (*Exits, error) {
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return nil, err
	}
	e := &Exits{when: map[string]time.Time{}, more: retry.NewWake()}
	go func() {
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			if ev.GetContainerEventType() != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				continue
			}
			e.mu.Lock()
			e.when[ev.GetContainerId()] = time.Now()
			e.mu.Unlock()
			e.more.Up()
		}
	}()
	return e, nil
}

// At returns when the event of this container arrived. It waits for it for two seconds, because it
// may arrive a moment after the status has changed; ok is false if it did not.
func (e *Exits) At(id string) (at time.Time, ok bool) {
	late := time.NewTimer(2 * time.Second)
	defer late.Stop()
	for {
		e.mu.Lock()
		t, ok := e.when[id]
		e.mu.Unlock()
		if ok {
			return t, true
		}
		select {
		case <-e.more:
		case <-late.C:
			return time.Time{}, false
		}
	}
}

// Ended waits until a container has ended, and returns its status. It polls, because status is
// served from memory.
func Ended(ctx context.Context, c runtimeapi.RuntimeServiceClient, id string) (*runtimeapi.ContainerStatus, error) {
	const often = 5 * time.Millisecond
	t := time.NewTicker(often)
	defer t.Stop()
	for {
		st, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil || st.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return st.GetStatus(), err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}
