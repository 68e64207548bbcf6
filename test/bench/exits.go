// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pollPause lies between two polls; with the call itself it is how finely an exit's time is seen, of both daemons.
const pollPause = 200 * time.Microsecond

// exited polls until a container is EXITED, for bound at most; ok tells whether it came to be.
func (n *node) exited(ctx context.Context, id string, since time.Time, bound time.Duration) (took time.Duration, ok bool, err error) {
	for ctx.Err() == nil {
		resp, err := n.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			return 0, false, fmt.Errorf("status of container %s: %w", id, err)
		}
		took = time.Since(since)
		if resp.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
			return took, true, nil
		}
		if took > bound {
			return bound, false, nil
		}
		pause := pollPause
		if took > time.Second { // nobody can tell the difference any more, and others need the processor
			pause = 5 * time.Millisecond
		}
		time.Sleep(pause)
	}
	return 0, false, ctx.Err()
}

// killToExited kills count containers of one pod, one after the other, and polls the status of each.
func killToExited(ctx context.Context, n *node, count int, add func(time.Duration)) error {
	pods, err := n.pods(ctx, 1, "")
	if err != nil {
		return err
	}
	for i := range count {
		v, err := n.victim(ctx, pods[0], fmt.Sprintf("polled%d", i))
		if err != nil {
			return err
		}
		time.Sleep(settle)
		began := time.Now()
		if err := v.kill(); err != nil {
			return err
		}
		took, ok, err := n.exited(ctx, v.id, began, bound)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("container %s is not EXITED %s after its end", v.id, bound)
		}
		add(took)
	}
	return n.removeAll(ctx)
}

const (
	// settle lets the work that a start leaves behind end, so that an exit is measured and not that work.
	settle = 50 * time.Millisecond
	// bound is how long an exit is watched.
	bound = time.Minute
)
