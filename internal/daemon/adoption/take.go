// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/exit"
	"berth/internal/base/wholefile"
	"berth/internal/engine/adopt"
	"berth/internal/heart/state"
	"berth/internal/host/cgroup"
	"berth/internal/host/logs"
)

// taking is the way of pods from the plug-in to berth.
type taking struct {
	*node
	*records
	outputs *outputs

	switched bool // --switch was run
	ended    int  // pods that the plug-in has ended and removed
	plan     adopt.Plan
	pods     map[string]adopt.Pod // of the plan, by ID
	// kills is what the counters of OOM kills have said while the containers ran.
	kills oomKills
	// ends are how containers have ended while --switch was run, as far as a witness knows.
	ends map[string]exit.Fact
}

// run takes over what the plug-in has.
func (t *taking) run(ctx context.Context) error {
	t.kills = oomKills{}
	if err := t.look(ctx); err != nil {
		return err
	}
	if t.request.Planned != nil {
		t.request.Planned(t.plan)
	}
	if len(t.plan.Refused) > 0 {
		return t.refusal()
	}
	if t.request.DryRun {
		return nil
	}
	serves, err := t.ctrd.Serves(ctx)
	if err != nil {
		return err
	}
	switch {
	case serves && t.request.Switch == "":
		return errors.New("containerd's CRI plug-in serves: add it to disabled_plugins in containerd's configuration, and give the command that restarts containerd as --switch; nothing was changed")
	case len(t.plan.Ended) > 0 && !serves:
		return errors.New("pods are to end that cannot be adopted, and containerd's CRI plug-in, which ends them, is off: turn it on again; nothing was changed")
	case serves:
		if err := t.end(ctx); err != nil {
			return err
		}
		if err := t.turnOff(ctx); err != nil {
			return err
		}
	case t.request.Switch != "":
		t.said("containerd's CRI plug-in is off already: --switch is not run")
	}
	if err := t.hold(); err != nil {
		return err
	}
	if err := t.note(); err != nil {
		return err
	}
	began := time.Now()
	if err := move(ctx, t, t.records, t.ids(), adopt.Take); err != nil {
		return err
	}
	if err := t.forgetGone(ctx); err != nil {
		return err
	}
	if err := t.ctrd.Sweep(ctx); err != nil {
		return err
	}
	t.said("%d pods are berth's, after %s", len(t.plan.Pods), time.Since(began).Round(time.Millisecond))
	return t.handToBerth(ctx)
}

// look finds out what there is, and plans. It waits for shims that are slow.
func (t *taking) look(ctx context.Context) error {
	return t.whileSilent(ctx, func(ctx context.Context) (silent int, err error) {
		found, err := t.find(ctx)
		if err != nil {
			return 0, err
		}
		t.makePlan(found)
		return t.plan.Silent, nil
	})
}

// makePlan plans what becomes of what was found.
func (t *taking) makePlan(found adopt.Found) {
	s := adopt.Settings{
		Handlers:  map[string]adopt.Handler{},
		Default:   t.cfg.DefaultRuntime,
		Own:       t.owner,
		Taking:    map[string]bool{},
		Clock:     t.clock,
		CgroupDir: cgroup.Dir,
		Held:      t.request.Switch != "",
		End:       t.request.End,
		Ends:      t.ends,
	}
	for name, r := range t.cfg.Runtimes {
		s.Handlers[name] = adopt.Handler{
			Name:        name,
			Type:        r.Type,
			HostProcess: r.HostProcess,
			Snapshotter: cmp.Or(r.Snapshotter, t.cfg.Containerd.Snapshotter),
		}
	}
	for _, r := range adopt.Unsettled(t.loaded) {
		s.Taking[r.ID] = true
	}
	t.plan = adopt.MakePlan(found, s)
	t.pods = map[string]adopt.Pod{}
	for _, p := range t.plan.Pods {
		t.pods[p.ID] = p
	}
}

func (t *taking) ids() []string {
	ids := make([]string, len(t.plan.Pods))
	for i, p := range t.plan.Pods {
		ids[i] = p.ID
	}
	return ids
}

// refusal says that something is refused, and how things are now.
func (t *taking) refusal() error {
	n := len(t.plan.Refused) + len(t.plan.Ended)
	why := fmt.Sprintf("%d pods or containers cannot be adopted, and nobody would serve them while the plug-in is off: remove them, have their pods end with --end, or change what the remarks say", n)
	if t.plan.Silent > 0 {
		why = fmt.Sprintf("the shims of %d pods or containers have not answered, so that nobody knows how they are: repeat the call, or remove them if they never answer", t.plan.Silent)
	}
	switch {
	case !t.switched && t.ended > 0:
		return fmt.Errorf("%s; no pod was adopted, and %d have ended", why, t.ended)
	case !t.switched:
		return fmt.Errorf("%s; nothing was changed", why)
	}
	return fmt.Errorf("%s; --switch was run, the plug-in is off, and no pod was taken over: they are the plug-in's, and nobody serves them. "+
		"After a repeated call they are berth's; or take the plug-in off disabled_plugins, and restart containerd", why)
}

// turnOff has the command of the operator turn the plug-in off. Meanwhile the tasks are guarded
// from containerd's clean-up, their ends are watched, and the pipes are held open, so that no exit
// code and no output is lost.
func (t *taking) turnOff(ctx context.Context) (err error) {
	var guarded []string
	defer func() {
		if err == nil {
			return
		}
		if uerr := each(context.WithoutCancel(ctx), guarded, t.ctrd.Unguard); uerr != nil {
			err = errors.Join(err, fmt.Errorf("%w; once containerd answers, `berth adopt --back` removes the guards, whether or not a pod was taken over", uerr))
		}
	}()
	if err := t.hold(); err != nil {
		return err
	}
	for _, p := range t.plan.Pods {
		for _, ct := range p.Containers {
			if ct.Task != nil {
				guarded = append(guarded, ct.ID)
			}
		}
	}
	if err := each(ctx, guarded, t.ctrd.Guard); err != nil {
		return err
	}
	seen := watchEnds(ctx, t.node, t.plan, t.kills)
	defer seen.close()
	if err := t.command(ctx, "--switch", t.request.Switch); err != nil {
		return err
	}
	t.switched = true
	if err := t.reach(ctx); err != nil {
		return err
	}
	uuid, err := t.ctrd.UUID(ctx)
	if err != nil {
		return err
	}
	if uuid != t.containerd.UUID {
		return fmt.Errorf("containerd is another one after --switch: its UUID was %s, and is %s, so that it has other directories, and none of the pods. The pods are the plug-in's as before, of the containerd before it, which also has what keeps their tasks from being cleaned up: once it serves again, `berth adopt --back` removes that", t.containerd.UUID, uuid)
	}
	serves, err := t.ctrd.Serves(ctx)
	if err != nil {
		return err
	}
	if serves {
		return errors.New("containerd's CRI plug-in serves after --switch as before it: does disabled_plugins name it, and was containerd restarted? The pods are the plug-in's as before")
	}
	t.ends = seen.facts()
	if err := t.look(ctx); err != nil { // it may have made and removed some
		return err
	}
	if len(t.plan.Refused)+len(t.plan.Ended) > 0 {
		return t.refusal()
	}
	return nil
}

// end has the plug-in end the pods that cannot be adopted and may end, and plans what is left.
func (t *taking) end(ctx context.Context) error {
	if len(t.plan.Ended) == 0 {
		return nil
	}
	for _, r := range t.plan.Ended {
		if err := t.request.Remove(ctx, t.cfg.Containerd.Address, r.ID); err != nil {
			return fmt.Errorf("end pod %s: %w; no pod was adopted", r.ID, err)
		}
		t.ended++
		t.said("pod %s has ended and is removed", r.ID)
	}
	if err := t.look(ctx); err != nil {
		return err
	}
	if len(t.plan.Refused)+len(t.plan.Ended) > 0 {
		return t.refusal()
	}
	return nil
}

// hold holds the pipes of all containers of the plan open, and counts their OOM kills.
func (t *taking) hold() error {
	for _, p := range t.plan.Pods {
		for _, ct := range p.Containers {
			if ct.Task == nil || t.outputs.held[ct.ID] != nil {
				continue
			}
			if err := t.outputs.hold(ct.ID, ct.Task); err != nil {
				return err
			}
			t.kills.count(ct.ID, ct.Status, t.clock.Now())
		}
	}
	return nil
}

// handToBerth has the command of the operator start berth while the pipes are held open. Without
// one, what is in the pipes goes into the logs now: of a container that has ended, nobody holds
// them then.
func (t *taking) handToBerth(ctx context.Context) error {
	if t.request.Start == "" {
		for _, p := range t.plan.Pods {
			for _, ct := range p.Containers {
				if err := t.outputs.flush(ctx, &p.Sandbox, &ct.Container, ""); err != nil {
					t.said("container %s: %v", ct.ID, err)
				}
			}
		}
		return nil
	}
	if err := t.close(); err != nil {
		return err
	}
	return t.command(ctx, "--start", t.request.Start)
}

// forgetGone forgets pods of which an adoption that was cut off has a record, and containerd
// nothing.
func (t *taking) forgetGone(ctx context.Context) error {
	for _, r := range adopt.Unsettled(t.loaded) { // as it was at the beginning
		if _, ok := t.pods[r.ID]; ok {
			continue
		}
		t.said("pod %s/%s (%s) is gone: its record is deleted", r.Namespace, r.Name, r.ID)
		if err := t.dropCaches(r); err != nil {
			return err
		}
		if err := t.Note(ctx, r.ID, state.OwnerPlugIn); err != nil {
			return err
		}
	}
	return nil
}

// Note commits who owns a pod. It implements [adopt.Outside].
func (t *taking) Note(ctx context.Context, id string, owner state.Owner) error {
	if p, ok := t.pods[id]; ok && owner == state.OwnerTaking {
		return t.begin(p, t.kills, t.clock.Now())
	}
	return t.records.Note(ctx, id, owner)
}

// HandOver is not of this way. It implements [adopt.Outside].
func (t *taking) HandOver(context.Context, string) error { return errOtherWay }

// TakeOver makes what is outside berth's. It implements [adopt.Outside].
func (t *taking) TakeOver(ctx context.Context, id string) error {
	p, ok := t.pods[id]
	if !ok {
		return fmt.Errorf("containerd does not have it any more: %w", errdefs.ErrNotFound)
	}
	for _, c := range p.Caches {
		if err := t.copyCache(c); err != nil {
			return err
		}
	}
	for _, ct := range p.Containers {
		if ct.Task != nil {
			if err := t.takeOutput(p, ct); err != nil {
				return fmt.Errorf("container %s: %w", ct.ID, err)
			}
		}
		if err := t.ctrd.TakeOver(ctx, ct.ID, false); err != nil {
			return err
		}
	}
	return t.ctrd.TakeOver(ctx, id, true)
}

// takeOutput has berth's log go on where the plug-in's has stopped.
func (t *taking) takeOutput(p adopt.Pod, ct adopt.Container) error {
	line := ""
	if ct.Status.Phase == state.Running {
		line = adopt.LogLine
	}
	err := logs.Adopt(t.outputs.of(&p.Sandbox, &ct.Container), pipesOf(ct.Task), line)
	switch {
	case errors.Is(err, logs.ErrLog): // berth tries again, and its output waits meanwhile
		t.said("container %s: %v", ct.ID, err)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		t.said("container %s: its pipes are gone, and what was in them: %v", ct.ID, err)
		return nil
	}
	return err
}

// cacheFor is where berth's own libcni looks for a cached result.
func (n *node) cacheFor(path string) string {
	return filepath.Join(n.cfg.Root, "cni", "results", filepath.Base(path))
}

// copyCache gives berth's libcni the result that a plug-in of CNI's needs to disconnect a pod.
func (n *node) copyCache(c adopt.Cached) error {
	to := n.cacheFor(c.Path)
	if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, c.Text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return wholefile.Write(to, c.Text, 0o600, os.Geteuid(), os.Getegid())
}

// dropCaches removes berth's copies of CNI's results of a pod, and what is left of one that was cut
// off.
func (n *node) dropCaches(r adopt.Record) error {
	if r.Sandbox.Adopted == nil {
		return nil
	}
	for _, path := range r.Sandbox.Adopted.Files {
		if err := os.Remove(n.cacheFor(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := wholefile.RemoveUnfinished(n.cacheFor(path)); err != nil {
			return err
		}
	}
	return nil
}
