// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"berth/internal/base/connection"
	"berth/internal/heart/pod"
)

const (
	// answerTimeout is how long an inventory waits for one shim.
	answerTimeout = 200 * time.Millisecond
	// inventoryTimeout is how long an inventory waits for shims after one of them has answered last.
	inventoryTimeout = 400 * time.Millisecond
	// shimsAtOnce is how many shims an inventory asks at the same time.
	shimsAtOnce = 64
	// orphanTimeout bounds one search for tasks without a container. Containerd asks each shim in
	// turn and waits two seconds for one that does not answer, so that the search may take long
	// where shims hang.
	orphanTimeout = 2 * time.Minute
)

// Inventory lists the objects in containerd that carry this berth's label, and asks for the state
// of each task. Containers, sandbox objects and snapshots come from containerd's own stores. The
// shims are asked side by side and within a bound: a task whose shim does not answer in time is in
// Unreachable. The inventory goes on as long as shims answer, because those of a full node take a
// while, and ends soon after the last answer, even if other shims hang. Orphans are the result of
// the last search: see [orphanSearch].
//
// It returns an error if one of containerd's stores cannot be read.
func (c *Containerd) Inventory(ctx context.Context) (pod.Inventory, error) {
	ctx = connection.Namespaced(ctx)
	inv := pod.Inventory{
		Containers:  map[string]map[string]string{},
		Tasks:       map[string]pod.TaskState{},
		Sandboxes:   map[string]bool{},
		Snapshots:   map[string]string{},
		Unreachable: map[string]bool{},
		Orphans:     map[string]bool{},
	}
	filter := fmt.Sprintf("labels.%q==%q", connection.LabelOwner, c.owner)
	cs, err := c.client.ContainerService().List(ctx, filter)
	if err != nil {
		return inv, fmt.Errorf("list containers: %w", connection.Native(err))
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(inventoryTimeout, cancel)
	defer idle.Stop()
	searched := c.orphans.begin(c)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.askTasks(asking, cs, &inv, func() { idle.Reset(inventoryTimeout) })
	}()
	err = c.listStores(ctx, filter, cs, &inv)
	<-answered
	if err != nil {
		return inv, err
	}
	select {
	case <-searched:
	case <-asking.Done(): // the next inventory has its result
	}
	if err := ctx.Err(); err != nil {
		return inv, fmt.Errorf("take an inventory of containerd: %w", err)
	}
	inv.Orphans = c.orphans.take()
	return inv, nil
}

// listStores lists sandbox objects and snapshots.
func (c *Containerd) listStores(ctx context.Context, filter string, cs []containers.Container, inv *pod.Inventory) error {
	sbs, err := c.client.SandboxStore().List(ctx, filter)
	if err != nil {
		return fmt.Errorf("list sandbox objects: %w", connection.Native(err))
	}
	for _, s := range sbs {
		inv.Sandboxes[s.ID] = true
	}
	snapshotters := map[string]bool{}
	for _, name := range c.snapshotters {
		snapshotters[name] = true
	}
	for _, o := range cs {
		if o.Snapshotter != "" {
			snapshotters[o.Snapshotter] = true
		}
	}
	for name := range snapshotters {
		err := c.client.SnapshotService(name).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			inv.Snapshots[i.Name] = name
			return nil
		}, filter)
		if err != nil {
			return fmt.Errorf("list snapshots of %s: %w", name, connection.Native(err))
		}
	}
	return nil
}

// askTasks fills in Containers, Tasks and Unreachable. The tasks of one pod, or of a group of pods,
// share a shim and are asked one after the other: once one of them got no answer, the rest are not
// asked. Different shims are asked side by side, so that one that hangs delays no other. answered
// is called with each answer.
func (c *Containerd) askTasks(ctx context.Context, cs []containers.Container, inv *pod.Inventory, answered func()) {
	byShim := map[string][]string{}
	for _, o := range cs {
		inv.Containers[o.ID] = o.Labels
		shim := o.SandboxID
		if shim == "" {
			shim = o.ID
		}
		shim = c.shims.Key(shim)
		byShim[shim] = append(byShim[shim], o.ID)
	}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(shimsAtOnce)
	for shim, ids := range byShim {
		g.Go(func() error {
			for i, id := range ids {
				c.asker.setAside(ctx, id) // its duration is not counted as the task's
				one, cancel := context.WithTimeout(ctx, answerTimeout)
				st, err := c.TaskState(one, id)
				gone := one.Err() != nil
				cancel()
				if !gone {
					answered()
				}
				mu.Lock()
				switch {
				case err == nil:
					inv.Tasks[id] = st
					if !st.Stopped {
						c.shims.Remember(shim, st.Pid)
					}
				case !errdefs.IsNotFound(err):
					inv.Unreachable[id] = true
					c.log.Warn("shim of a task does not answer, retrying later", "id", id, "pod", shim, "err", err)
				}
				if gone && err != nil {
					for _, rest := range ids[i+1:] {
						inv.Unreachable[rest] = true
					}
				}
				mu.Unlock()
				if gone && err != nil {
					return nil
				}
			}
			return nil
		})
	}
	_ = g.Wait()
}

// orphanSearch looks for tasks that have no container: containerd made them for a caller that had
// given up waiting and removed the container. Only containerd's list of tasks has them, and that
// asks every shim in turn. So it is read in the background, one list at a time.
type orphanSearch struct {
	mu      sync.Mutex
	running chan struct{} // closed at the end of the search that is under way; nil: there is none
	found   map[string]bool
}

// begin starts a search unless one is under way. The channel is closed when it has ended.
func (o *orphanSearch) begin(c *Containerd) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running != nil {
		return o.running
	}
	ended := make(chan struct{})
	o.running = ended
	c.background.Go(func() {
		ctx, cancel := context.WithTimeout(connection.Namespaced(c.life), orphanTimeout)
		defer cancel()
		found, err := findOrphans(ctx, c)
		if err != nil {
			c.log.Warn("search for tasks without a container failed", "err", err)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running, o.found = nil, found
		close(ended)
	})
	return ended
}

// take returns the result of the last search, once.
func (o *orphanSearch) take() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := o.found
	o.found = nil
	return found
}

// findOrphans lists the tasks that have no container. A container is made before its task, so that
// it is looked for after the task was listed.
func findOrphans(ctx context.Context, c *Containerd) (map[string]bool, error) {
	ts, err := c.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", connection.Native(err))
	}
	cs, err := c.client.ContainerService().List(ctx) // those of all clients
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", connection.Native(err))
	}
	known := make(map[string]bool, len(cs))
	for _, o := range cs {
		known[o.ID] = true
	}
	orphans := map[string]bool{}
	for _, t := range ts.Tasks {
		if !known[t.ID] {
			orphans[t.ID] = true
		}
	}
	return orphans, nil
}
