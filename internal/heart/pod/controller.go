// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/lane"
	"berth/internal/base/ops"
	"berth/internal/heart/state"
	"berth/internal/host/spec"
)

// Controller holds every sandbox and container. Its methods serve the requests of clients; work
// that berth begins by itself is done by the types that it puts together. Its methods may be called
// from any goroutine once Restore has returned; Run must be running.
type Controller struct {
	cfg  Config
	feed Feed
	obs  Observer

	units     *registry
	names     *inflight
	ops       *operations
	lanes     *lanes
	output    *output
	statuses  *statuses
	describer *describer
	sandboxes *sandboxMaker
	creator   *creator
	starter   *starter
	updater   *updater
	witnesses *witnesses
	settler   *settler
	endings   *endings
	teardown  *teardown
	stopper   *stopper
	remover   *remover
	damaged   *damaged
	orphans   *orphans
	recovery  *recovery
	auditor   *auditor
}

// Run drives the lanes and the audit until ctx ends, then ends the operations in flight and waits
// for them. The processes of pods go on.
func (c *Controller) Run(ctx context.Context) error {
	// The lanes end last: the operations in flight wait for them, and an exit that is reported
	// meanwhile is recorded.
	lanes, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.lanes.runner.Run(lanes) })
	g.Go(func() error {
		c.auditor.run(ctx)
		c.ops.close()
		end()
		return nil
	})
	return g.Wait()
}

// RunPodSandbox makes a sandbox and returns its ID once it is READY. The same request again, from a
// caller that did not get its answer, joins the one in flight.
func (c *Controller) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handlerName string) (string, error) {
	return c.runPodSandbox(ctx, config, handlerName, config, func(string) error { return nil })
}

// RunNotedPodSandbox makes a sandbox for a caller that has to know the ID before anything is made:
// note is called with it, and nothing is made if that returns an error. It joins no other call, and
// none joins it: it returns ErrAlreadyExists if the name is taken, or if its sandbox is being made.
func (c *Controller) RunNotedPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handlerName string, note func(id string) error) (string, error) {
	return c.runPodSandbox(ctx, config, handlerName, nil, note)
}

// runPodSandbox makes a sandbox, or joins a call in flight that was made with the same request. nil
// joins none.
func (c *Controller) runPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handlerName string,
	request proto.Message, note func(id string) error,
) (string, error) {
	h, err := c.handler(handlerName)
	if err == nil {
		err = c.stopper.refusesNew()
	}
	if err == nil {
		err = spec.CheckSandbox(config)
	}
	if err == nil {
		err = c.sandboxes.userns.check(ctx, config, h)
	}
	if err != nil {
		return "", c.sandboxes.refuse(c.cfg.NewID(), config, err)
	}
	w := ops.Work{Kind: ops.Run, Of: ops.Object{Names: namesOfPod(config)}, Then: "what was made is undone"}
	return c.names.join(ctx, sandboxName(config.GetMetadata()), w, request, func(ctx context.Context, id string) error {
		if err := note(id); err != nil {
			return fmt.Errorf("run sandbox %s: note its ID %s: %w", config.GetMetadata().GetName(), id, err)
		}
		img, err := c.sandboxes.pauses.plan(ctx, h)
		if err != nil {
			return c.sandboxes.refuse(id, config, err)
		}
		sb := state.Sandbox{
			ID:             id,
			RuntimeHandler: handlerName,
			Config:         config,
			Image:          img,
			Pinned:         c.sandboxes.pauses.needless(ctx, config, h),
		}
		if sb.Pinned && config.GetAnnotations()[ownShim] == "" {
			sb.ShimGroup = c.sandboxes.shims.JoinGroup(ctx, id, h)
		}
		return c.sandboxes.run(ctx, c.sandboxes.plan(sb, h))
	})
}

// handler resolves a runtime handler's name; "" is the default.
func (c *Controller) handler(name string) (Handler, error) {
	if name == "" {
		name = c.cfg.DefaultHandler
	}
	h, ok := c.cfg.Handlers[name]
	if !ok {
		return Handler{}, fmt.Errorf("runtime handler %q is not configured: %w", name, errdefs.ErrInvalidArgument)
	}
	return h, nil
}

// StopPodSandbox ends every process of the pod and returns once that is settled and, within a
// bound, once the network was given back; if that takes longer it goes on by itself. Creations and
// starts in flight are interrupted. Stopping a stopped or absent sandbox succeeds.
func (c *Controller) StopPodSandbox(ctx context.Context, id string) error {
	u, err := c.units.findSandbox(id)
	if errdefs.IsNotFound(err) {
		return c.orphans.stopDamaged(ctx, id, state.KindSandbox)
	}
	if err != nil {
		return err
	}
	return c.stopper.stopPod(ctx, u)
}

// RemovePodSandbox stops the pod, removes its containers and gives everything back, as
// RemoveContainer does for a container.
func (c *Controller) RemovePodSandbox(ctx context.Context, id string) error {
	u, err := c.units.findSandbox(id)
	if errdefs.IsNotFound(err) {
		return c.orphans.removeDamaged(ctx, id, state.KindSandbox)
	}
	if err != nil {
		return err
	}
	if !u.visible() {
		return fmt.Errorf("remove sandbox %s: it is still being made: %w", u.id, errdefs.ErrFailedPrecondition)
	}
	return c.remover.removePod(ctx, u)
}

// CreateContainer makes a container in a READY sandbox and returns its ID. Nothing runs yet.
func (c *Controller) CreateContainer(ctx context.Context, podID string, config *runtimeapi.ContainerConfig) (string, error) {
	name := config.GetMetadata().GetName()
	p, err := c.units.findSandbox(podID)
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", name, err)
	}
	err = p.mustBeReady()
	if err == nil {
		err = c.stopper.refusesNew()
	}
	if err == nil {
		err = spec.CheckContainer(config)
	}
	if err == nil {
		err = checkImageHandler(config, p)
	}
	if err != nil {
		return "", fmt.Errorf("create container %s: %w", name, c.creator.refuse(c.cfg.NewID(), p, config, err))
	}
	w := ops.Work{Kind: ops.Create, Of: ops.Object{Names: namesOfContainer(p, config)}, Then: "what was made is undone"}
	return c.names.join(ctx, containerName(p.id, config.GetMetadata()), w, config, func(ctx context.Context, id string) error {
		if err := c.creator.create(ctx, id, p, config); err != nil {
			return fmt.Errorf("create container %s: %w", name, err)
		}
		return nil
	})
}

// StartContainer runs the program of a CREATED container. A container that was started already is
// an error, except for a caller that asks again while the first start is in flight: it waits and
// gets the same success.
func (c *Controller) StartContainer(ctx context.Context, id string) error {
	u, err := c.units.findContainer(id)
	if err != nil {
		return fmt.Errorf("start container: %w", err)
	}
	if err := c.stopper.refusesNew(); err != nil {
		return fmt.Errorf("start container %s: %w", u.id, err)
	}
	if err := c.starter.run(ctx, u); err != nil {
		return fmt.Errorf("start container %s: %w", u.id, err)
	}
	return nil
}

// StopContainer asks a container to end, waits for timeout, then kills it, and returns once its
// exit is settled. Timeout 0 kills at once. Stopping a container that has ended, or is absent,
// succeeds. A container that was never started stays CREATED, and can still be started: CRI has no
// state for a container that may not be.
func (c *Controller) StopContainer(ctx context.Context, id string, timeout time.Duration) error {
	u, err := c.units.findContainer(id)
	if errdefs.IsNotFound(err) {
		return c.orphans.stopDamaged(ctx, id, state.KindContainer)
	}
	if err != nil {
		return err
	}
	return c.stopper.stop(ctx, u, timeout)
}

// ShutDown ends every container because the machine is being shut down, all at once and each in its
// grace period, and returns once their exits are settled. From then on nothing is made or started.
// ctx needs a deadline, before which the last ones are killed.
func (c *Controller) ShutDown(ctx context.Context) error { return c.stopper.endAll(ctx, c.units) }

// RemoveContainer removes a container, killing it first if it runs, and waits within ctx until
// everything was given back. If ctx ends first, the error names the pending step; the removal is on
// record then and goes on by itself. Removing an absent container succeeds.
func (c *Controller) RemoveContainer(ctx context.Context, id string) error {
	u, err := c.units.findContainer(id)
	if errdefs.IsNotFound(err) {
		return c.orphans.removeDamaged(ctx, id, state.KindContainer)
	}
	if err != nil {
		return err
	}
	return c.remover.remove(ctx, u)
}

// UpdateContainerResources changes the resources of a container, from now on or, while it is
// CREATED, from its start on. Fields that the request does not set stay as they are. It returns
// once the change is in effect, refused, or pointless because the container has ended; the change
// is on record before anything is asked for it, and goes on without its caller and through a crash.
func (c *Controller) UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.LinuxContainerResources) error {
	u, err := c.units.findContainer(id)
	if rec, ok := c.damaged.find(id, state.KindContainer); ok && err != nil {
		return fmt.Errorf("update container %s: its record cannot be read, remove it: %w", rec.ID, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return fmt.Errorf("update container: %w", err)
	}
	if err := c.updater.update(ctx, u, r); err != nil {
		return fmt.Errorf("update container %s: %w", u.id, err)
	}
	return nil
}

// UpdatePodSandboxResources records the kubelet's values for the resources of a pod, whose cgroup
// the kubelet itself has changed by then. nil leaves a part as it is.
func (c *Controller) UpdatePodSandboxResources(ctx context.Context, id string, overhead, resources *runtimeapi.LinuxContainerResources) error {
	u, err := c.units.findSandbox(id)
	if err != nil {
		return fmt.Errorf("update sandbox: %w", err)
	}
	var ended error
	err = u.changeFor(ctx, func(st *state.Status) bool {
		if st.Phase != state.Ready {
			ended = fmt.Errorf("it is %s, not READY: %w", st.Phase, errdefs.ErrFailedPrecondition)
			return false
		}
		next := state.PodResources{}
		if st.PodResources != nil {
			next = *st.PodResources
		}
		if overhead != nil {
			next.Overhead = &state.Limits{Linux: overhead}
		}
		if resources != nil {
			next.Resources = &state.Limits{Linux: resources}
		}
		st.PodResources = &next
		return true
	})
	if err == nil {
		err = ended
	}
	if err != nil {
		return fmt.Errorf("update sandbox %s: %w", u.id, err)
	}
	c.obs.Note(u.id, event.PodResourcesRecorded{})
	return nil
}

// attempt makes one attempt of a lane.
func (c *Controller) attempt(ctx context.Context, a lane.Attempt[LaneKey, Step]) lane.Result {
	ctx, op := c.ops.list.Begin(ctx, ops.Work{
		Kind: ops.Step,
		What: string(a.Item),
		Of:   ops.Object{ID: a.Key.ID},
		Then: "it is tried again",
	})
	err := c.step(ctx, a)
	op.End()
	switch {
	case err == nil:
		return lane.Done()
	case ctx.Err() != nil && c.ops.stopping():
		return lane.Retry(err) // berth stops, and the next one goes on
	}
	switch {
	case errors.Is(err, errMembers): // as it often is, and nothing is wrong
		c.obs.Note(a.Key.ID, event.AttemptPostponed{
			Step:    string(a.Item),
			Attempt: a.N,
			Until:   "the pod's containers are removed",
		})
	case errors.Is(err, lane.ErrTurn): // likewise
		c.obs.Note(a.Key.ID, event.AttemptPostponed{
			Step:    string(a.Item),
			Attempt: a.N,
			Until:   "those of containers that ended earlier",
		})
	default:
		c.obs.Note(a.Key.ID, event.AttemptFailed{Step: string(a.Item), Attempt: a.N, Err: err.Error()})
	}
	if a.Item == StepSettle {
		return lane.RetryWithin(err, settleRetry)
	}
	return lane.Retry(err)
}

func (c *Controller) step(ctx context.Context, a lane.Attempt[LaneKey, Step]) error {
	switch a.Item { // these do not need a unit on record
	case StepReap:
		return c.orphans.reap(ctx, a.Key.ID)
	case StepNotify:
		return c.endings.attempt(ctx, a.Key.ID)
	}
	u, ok := c.units.get(a.Key.ID)
	if !ok {
		c.teardown.pacer.Forget(a.Key.ID)
		return nil
	}
	switch a.Item {
	case StepUndoStart:
		return c.teardown.undoStart(ctx, u)
	case StepSettle:
		err := c.settler.settle(ctx, u)
		u.setSettleError(err)
		return err
	case StepRelease:
		return c.teardown.release(ctx, u, a.N == 1)
	case StepUpdate:
		return c.updater.apply(ctx, u)
	}
	return nil
}

// Units returns how many sandboxes and containers are on record, also those that no list shows.
func (c *Controller) Units() int { return len(c.units.all()) }

// OnRecord reports whether a sandbox or container with this ID is on record, readable or not.
func (c *Controller) OnRecord(id string) bool {
	_, ok := c.units.get(id)
	return ok || c.damaged.has(id)
}

// HasAddress reports whether a pod on record has an address of its network.
func (c *Controller) HasAddress(ip string) bool {
	return slices.ContainsFunc(c.units.allSandboxes(), func(u *unit) bool {
		st := u.now()
		return st.Network != nil && slices.Contains(st.Network.IPs, ip) && st.Holds.Has(state.HoldNetwork)
	})
}

// Exited takes a fact of a witness. It never blocks.
func (c *Controller) Exited(f exit.Fact) { c.witnesses.report(f) }

// OOMKilled takes containerd's report that the OOM killer fired in a container.
func (c *Controller) OOMKilled(id string) { c.witnesses.reportOOM(id) }

// OOMNoted takes IDs of containers in whose cgroups the OOM killer may have fired, as the kernel
// notifies of. It does not block.
func (c *Controller) OOMNoted(ids []string) { c.witnesses.ooms.noted(ids) }

// Restore takes the records that were loaded. Call it once, before any call is served. Damaged
// records are left alone, and so are their objects outside.
func (c *Controller) Restore(loaded state.Loaded) { c.recovery.restore(loaded) }

// Relist compares every unit with containerd's state. Call it after each new connection, because
// events may have been lost.
func (c *Controller) Relist(ctx context.Context) error {
	soon, err := c.recovery.relist(ctx)
	if soon {
		c.auditor.relistSoon()
	}
	return err
}

// Audit compares once with the kernel and, where that does not know, with containerd.
func (c *Controller) Audit() { c.auditor.audit() }

// Steps shows the lanes that are not idle, as operations.
func (c *Controller) Steps() (steps []ops.Operation) {
	for _, l := range c.Lanes() {
		id, _, _ := strings.Cut(l.ID, " ") // the purpose follows
		steps = append(steps, ops.Operation{
			Work: ops.Work{
				Kind:  ops.Step,
				What:  fmt.Sprint(l.Head),
				Of:    ops.Object{ID: id},
				Until: l.Until,
			},
			Since: l.Since,
			Tries: l.Tries,
			Err:   l.Err,
		})
	}
	return steps
}

// Lanes shows the lanes that are not idle.
func (c *Controller) Lanes() []lane.Lane { return c.lanes.runner.Snapshot() }

// Oldest returns the age of the oldest exit that waits for a step: reported and not settled, or
// settled and not released. 0: none does.
func (c *Controller) Oldest(step Step) time.Duration { return c.auditor.oldest(step) }

// Drained returns when all output that a container wrote before it ended is in its log, or with
// ctx's error. Call it before reading the log of an ended container. A container without output, or
// an ID without a record, is not an error.
func (c *Controller) Drained(ctx context.Context, id string) error {
	u, ok := c.units.get(id)
	if !ok {
		return nil
	}
	if s := u.stdio(); s != nil {
		return s.Drain(ctx)
	}
	return nil
}

// Target describes a sandbox or a container, by its ID or the beginning of one. The same ID may
// name either, so a caller that wants one of them names it in its error for ErrNotFound.
func (c *Controller) Target(id string) (Target, error) {
	if u, ok := c.units.get(id); ok {
		return targetOf(u), nil
	}
	u, err := c.units.findContainer(id)
	if errdefs.IsNotFound(err) {
		u, err = c.units.findSandbox(id)
	}
	if errdefs.IsNotFound(err) {
		return Target{}, fmt.Errorf("container or sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	if err != nil {
		return Target{}, err
	}
	return targetOf(u), nil
}
