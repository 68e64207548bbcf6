// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
)

const (
	// graceAnnotation has the grace period of a pod in seconds, because CRI has it in StopContainer
	// alone. The kubelet and berth play set it on containers.
	graceAnnotation = "io.kubernetes.pod.terminationGracePeriod"
	// usualGrace is Kubernetes' grace period, for containers without that annotation.
	usualGrace = 30 * time.Second
	// killTime is how long before the deadline of a shutdown the last containers are killed.
	killTime = 5 * time.Second
)

// refusesNew returns an error if nothing may be made or started.
func (s *stopper) refusesNew() error {
	if !s.shutDown.Load() {
		return nil
	}
	return fmt.Errorf("the machine is being shut down: %w", errdefs.ErrUnavailable)
}

// endAll ends every container that runs: see [Controller.ShutDown]. Sandboxes stay, because the
// next boot has to release what they have in any case.
func (s *stopper) endAll(ctx context.Context, all *registry) error {
	s.shutDown.Store(true)
	var running []*unit
	for _, u := range all.all() {
		if !u.isSandbox() && !u.now().Phase.Ended() {
			running = append(running, u)
		}
	}
	s.obs.Note("", event.MachineShutDown{Running: len(running)})
	var mu sync.Mutex
	var left []error
	var ends sync.WaitGroup
	for _, u := range running {
		ends.Go(func() {
			err := guard(func() error { return s.stop(ctx, u, s.graceOf(ctx, u)) })
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			left = append(left, fmt.Errorf("container %s: %w", u.id, err))
		})
	}
	ends.Wait()
	return errors.Join(left...)
}

// graceOf returns the time between the stop signal and SIGKILL.
func (s *stopper) graceOf(ctx context.Context, u *unit) time.Duration {
	grace := usualGrace
	if n, err := strconv.ParseInt(u.container.Config.GetAnnotations()[graceAnnotation], 10, 32); err == nil && n >= 0 {
		grace = time.Duration(n) * time.Second
	}
	if deadline, ok := ctx.Deadline(); ok {
		grace = min(grace, max(time.Until(deadline)-killTime, 0))
	}
	return grace
}
