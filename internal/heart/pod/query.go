// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/state"
)

// PodSandboxStatus returns the status of the sandbox and of its containers, newest first, from
// memory. With verbose there is a JSON document under "info".
func (c *Controller) PodSandboxStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	u, err := c.units.findSandbox(id)
	if rec, ok := c.damaged.find(id, state.KindSandbox); ok && err != nil {
		return &runtimeapi.PodSandboxStatusResponse{Status: c.damaged.sandbox(rec)}, nil
	}
	if err != nil {
		return nil, err
	}
	at := c.feed.Instant(u.clock.Wall(u.clock.Now())) // before the snapshot: the instant must not be later
	resp := &runtimeapi.PodSandboxStatusResponse{
		Status:             c.statuses.sandbox(u),
		Timestamp:          at,
		ContainersStatuses: c.statuses.newestFirst(u.containers()),
	}
	if verbose {
		resp.Info, err = c.describer.sandbox(ctx, u)
	}
	return resp, err
}

// ListPodSandbox lists the sandboxes that match, oldest first.
func (c *Controller) ListPodSandbox(f *runtimeapi.PodSandboxFilter) (list []*runtimeapi.PodSandbox) {
	add := func(i *runtimeapi.PodSandbox) {
		if idMatches(f.GetId(), i.Id) && labelsMatch(f.GetLabelSelector(), i.Labels) && (f.GetState() == nil || f.GetState().GetState() == i.State) {
			list = append(list, i)
		}
	}
	for _, u := range c.units.allSandboxes() {
		if u.visible() {
			add(c.statuses.sandboxItem(u))
		}
	}
	for _, rec := range c.damaged.list(state.KindSandbox) {
		add(sandboxItem(c.damaged.sandbox(rec)))
	}
	return list
}

// ContainerStatus returns the status of one container, from memory. With verbose there is a JSON
// document under "info".
func (c *Controller) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatusResponse, error) {
	u, err := c.units.findContainer(id)
	if rec, ok := c.damaged.find(id, state.KindContainer); ok && err != nil {
		return &runtimeapi.ContainerStatusResponse{Status: c.damaged.container(rec)}, nil
	}
	if err != nil {
		return nil, err
	}
	if !u.visible() { // nor is it listed
		return nil, fmt.Errorf("container %s: it is being made: %w", u.id, errdefs.ErrNotFound)
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: c.statuses.container(u)}
	if verbose {
		resp.Info, err = c.describer.container(ctx, u)
	}
	return resp, err
}

// ListContainers lists the containers that match, oldest first.
func (c *Controller) ListContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	candidates := c.candidates(f)
	list := make([]*runtimeapi.Container, 0, len(candidates))
	add := func(i *runtimeapi.Container) {
		if idMatches(f.GetId(), i.Id) && idMatches(f.GetPodSandboxId(), i.PodSandboxId) && labelsMatch(f.GetLabelSelector(), i.Labels) &&
			(f.GetState() == nil || f.GetState().GetState() == i.State) {
			list = append(list, i)
		}
	}
	for _, u := range candidates {
		if u.visible() {
			add(c.statuses.containerItem(u))
		}
	}
	for _, rec := range c.damaged.list(state.KindContainer) {
		add(containerItem(rec.Container.PodID, c.damaged.container(rec)))
	}
	return list
}

// candidates returns the containers among which a filter can find any. A filter by ID or by pod
// does not walk all.
func (c *Controller) candidates(f *runtimeapi.ContainerFilter) []*unit {
	if u, ok := c.units.get(f.GetId()); ok && !u.isSandbox() {
		return []*unit{u}
	}
	if p, ok := c.units.get(f.GetPodSandboxId()); ok && p.isSandbox() {
		return p.containers()
	}
	return c.units.allContainers()
}

// Ended returns the known end of each sandbox and container whose end is not on record yet, by its
// ID: its process has ended, and CRI still shows the state before. That takes milliseconds, unless
// the records cannot be written.
func (c *Controller) Ended() map[string]event.Exit {
	ended := map[string]event.Exit{}
	for _, u := range c.units.all() {
		if known, ok := u.unrecorded(); ok {
			ended[u.id] = event.ExitOf(known)
		}
	}
	return ended
}

// ReopenContainerLog starts a new log file after the old one was moved away.
func (c *Controller) ReopenContainerLog(ctx context.Context, id string) error {
	u, err := c.units.findContainer(id)
	if err != nil {
		return err
	}
	return c.output.reopenLog(ctx, u)
}

// idMatches reports whether a filter's ID matches: filters take whole IDs and, as users of crictl
// type them, the beginning of one.
func idMatches(want, id string) bool { return strings.HasPrefix(id, want) }

func labelsMatch(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
