// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// teller collects events.
type teller struct {
	mu     sync.Mutex
	events []*runtimeapi.ContainerEventResponse
}

// follow subscribes until the test ends, or berth does.
func follow(t *testing.T, n *node.Node) *teller {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	told, done := &teller{}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			ev, err := stream.Recv()
			if err != nil {
				return
			}
			told.mu.Lock()
			told.events = append(told.events, ev)
			told.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return told
}

func (o *teller) all() []*runtimeapi.ContainerEventResponse {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]*runtimeapi.ContainerEventResponse(nil), o.events...)
}

func (o *teller) stopped(id string) bool {
	for _, ev := range o.all() {
		if ev.GetContainerId() == id && ev.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			return true
		}
	}
	return false
}
