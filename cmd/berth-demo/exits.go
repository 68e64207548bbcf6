// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// exits remembers when the STOPPED event of each container arrived.
type exits struct {
	mu   sync.Mutex
	when map[string]time.Time
	more chan struct{}
}

// watchExits subscribes to container events until ctx ends.
func watchExits(ctx context.Context, c runtimeapi.RuntimeServiceClient) (*exits, error) {
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return nil, err
	}
	e := &exits{when: map[string]time.Time{}, more: make(chan struct{}, 1)}
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
			select {
			case e.more <- struct{}{}:
			default:
			}
		}
	}()
	return e, nil
}

// at returns when the event of this container arrived, and waits for it, because it may arrive a
// moment after the status has changed.
func (e *exits) at(id string) time.Time {
	for {
		e.mu.Lock()
		t, ok := e.when[id]
		e.mu.Unlock()
		if ok {
			return t
		}
		select {
		case <-e.more:
		case <-time.After(2 * time.Second):
			return time.Now()
		}
	}
}
