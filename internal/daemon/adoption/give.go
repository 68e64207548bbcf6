// SPDX-License-Identifier: Apache-2.0

package adoption

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"berth/internal/base/clock"
	"berth/internal/base/retry"
	"berth/internal/base/wholefile"
	"berth/internal/engine/adopt"
	"berth/internal/engine/ctrd"
	"berth/internal/heart/state"
	"berth/internal/host/logs"
)

// giving is the way of pods back to the plug-in.
type giving struct {
	*node
	*records
	outputs *outputs
	objects map[string]adopt.Object // containerd's, by ID, as look has found them
	guards  bool                    // the tasks are guarded from a containerd that starts
}

// run gives the pods back that the plug-in can have.
func (g *giving) run(ctx context.Context) error {
	var back adopt.Back
	if err := g.whileSilent(ctx, func(ctx context.Context) (silent int, err error) {
		if back, err = g.look(ctx); back.Silent < len(back.Kept) && !g.request.Leave {
			return 0, err // whatever they answer
		}
		return back.Silent, err
	}); err != nil {
		return err
	}
	if g.request.PlannedBack != nil {
		g.request.PlannedBack(back)
	}
	switch {
	case len(back.Kept) > 0 && !g.request.Leave:
		return fmt.Errorf("%d pods cannot be the plug-in's, and nobody would serve them while berth does not: do what the remarks say, or leave them with --leave; nothing was changed", len(back.Kept))
	case g.request.DryRun:
		return nil
	}
	serves, err := g.ctrd.Serves(ctx)
	if err != nil {
		return err
	}
	switch {
	case serves && len(back.Pods) > 0:
		return errors.New("containerd's CRI plug-in serves: it has to be off until the pods are its own again; nothing was changed")
	case serves: // what was cut off has nothing left but guards
		g.said("containerd's CRI plug-in serves, and there is no pod to give back")
		return g.unguard(ctx)
	}
	if err := g.note(); err != nil {
		return err
	}
	if err := g.prepare(ctx, back.Pods); err != nil {
		return err
	}
	ids := make([]string, len(back.Pods))
	for i, r := range back.Pods {
		ids[i] = r.ID
	}
	if err := move(ctx, g, g.records, ids, adopt.Give); err != nil {
		return err
	}
	g.said("%d pods are the plug-in's: take it off disabled_plugins, and restart containerd", len(back.Pods))
	if g.request.Switch == "" {
		return nil
	}
	if err := g.close(); err != nil {
		return err
	}
	if err := g.command(ctx, "--switch", g.request.Switch); err != nil {
		return err
	}
	return g.settle(ctx, back.Pods)
}

// look finds out what there is, and which pods the plug-in can have.
func (g *giving) look(ctx context.Context) (back adopt.Back, err error) {
	found, err := g.find(ctx)
	if err != nil {
		return back, err
	}
	g.objects = map[string]adopt.Object{}
	for _, o := range found.Objects {
		g.objects[o.ID] = o
	}
	return adopt.MakeBack(g.loaded, found), nil
}

// unguard removes all guards, also those of an adoption, or its way back, that was cut off: the
// pods of some of them have no record any more, and those of others have none yet.
func (g *giving) unguard(ctx context.Context) error {
	left, err := g.ctrd.Guarded(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	if err := each(ctx, left, g.ctrd.Unguard); err != nil {
		return err
	}
	g.said("%d guards of tasks were removed", len(left))
	return nil
}

// prepare sees to it that what ends while containerd is restarted has its exact code, and that
// nothing that it has written is lost. A plug-in of 1.x leaves the guards, so that somebody has to
// wait for it and remove them: without --switch there are none, nor are there any beside a plug-in
// that does not start then.
func (g *giving) prepare(ctx context.Context, pods []adopt.Record) error {
	guards, err := g.ctrd.Guards(ctx)
	if err != nil {
		return err
	}
	g.guards = guards == ctrd.GuardsRemoved || guards == ctrd.GuardsLeft && g.request.Switch != ""
	if !g.guards {
		g.said("what ends while containerd is restarted will be reported as 255, Unknown")
		if err := g.unguard(ctx); err != nil {
			return err
		}
	}
	if g.request.Switch == "" {
		return nil
	}
	for _, r := range pods {
		for _, ct := range r.Containers {
			if err := g.outputs.hold(ct.ID, g.objects[ct.ID].Task); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle waits until the plug-in serves its pods again. Then it does what the plug-in has not done:
// the guards are removed, if there are any left, and what was in the pipes of a container that had
// ended goes into its log.
func (g *giving) settle(ctx context.Context, pods []adopt.Record) error {
	if err := g.reach(ctx); err != nil {
		return err
	}
	serves, err := g.ctrd.Serves(ctx)
	if err != nil {
		return err
	}
	if !serves {
		return errors.New("containerd's CRI plug-in is off after --switch as before it: take it off disabled_plugins, and restart containerd. The pods are the plug-in's")
	}
	if err := g.ready(ctx); err != nil {
		return err
	}
	objects, err := g.ctrd.Objects(ctx)
	if err != nil {
		return err
	}
	ended := map[string]bool{} // the plug-in has deleted the task, and reads nothing of it any more
	for _, o := range objects {
		ended[o.ID] = o.Task == nil && o.Unasked == ""
	}
	if err := g.unguard(ctx); err != nil {
		return err
	}
	var rests []rest
	for _, r := range pods {
		for _, ct := range r.Containers {
			if held := g.outputs.held[ct.ID]; held != nil && ended[ct.ID] {
				rests = append(rests, rest{ct.ID, held, g.outputs.of(&r.Sandbox.Sandbox, &ct.Container)})
			}
		}
	}
	g.writeRests(ctx, rests)
	return nil
}

// rest is the end of the output of a container, which nobody but berth adopt has any more.
type rest struct {
	id   string
	held *logs.Held
	log  logs.Options
}

// writeRests writes the ends of logs. It tries those that cannot be written again until
// [node.patience] is over, and then says what is lost. The plug-in serves meanwhile.
func (g *giving) writeRests(ctx context.Context, rests []rest) {
	within, cancel := context.WithTimeout(ctx, g.patience)
	defer cancel()
	errs := map[string]error{}
	for wait := range retry.Doubling(within.Done(), askInterval, slowestAsk) {
		rests = slices.DeleteFunc(rests, func(r rest) bool {
			errs[r.id] = r.held.WriteRest(r.log)
			return errs[r.id] == nil
		})
		if len(rests) == 0 {
			return
		}
		if wait == askInterval {
			g.said("container %s, and %d others: the end of its log cannot be written, which is tried again for up to %s: %v",
				rests[0].id, len(rests)-1, g.patience, errs[rests[0].id])
		}
	}
	for _, r := range rests {
		g.said("container %s: the last %d bytes of its log are lost: %v", r.id, r.held.Unwritten(), errs[r.id])
	}
}

// errOtherWay says that the machine has asked for a step that its table does not have.
var errOtherWay = errors.New("a step of the other way was asked for, which is a defect of berth's")

// TakeOver is not of this way. It implements [adopt.Outside].
func (g *giving) TakeOver(context.Context, string) error { return errOtherWay }

// HandOver makes what is outside the plug-in's. It implements [adopt.Outside].
func (g *giving) HandOver(ctx context.Context, id string) error {
	r, ok := g.of(id)
	if !ok {
		return fmt.Errorf("there is no record of it: %w", errdefs.ErrNotFound)
	}
	for _, ct := range r.Containers {
		if err := g.handOverContainer(ctx, r, ct); err != nil {
			return fmt.Errorf("container %s: %w", ct.ID, err)
		}
	}
	if err := g.dropCaches(r); err != nil {
		return err
	}
	return g.ctrd.HandOver(ctx, id, adopt.SandboxName(r.Sandbox.Config))
}

func (g *giving) handOverContainer(ctx context.Context, r adopt.Record, ct state.ContainerRecord) error {
	object := g.objects[ct.ID]
	if object.Owner != "" { // or it was handed over before this was cut off, and the plug-in may have had it
		line := ""
		if ct.Status.Phase == state.Running && object.Task != nil && object.Task.Stopped { // nobody held its pipes
			line = adopt.EndLine
		}
		if err := g.outputs.flush(ctx, &r.Sandbox.Sandbox, &ct.Container, line); err != nil {
			return err
		}
		if err := writeStatus(ct, object, g.clock); err != nil {
			return err
		}
	}
	if err := logs.RemoveAll(g.files.IO(ct.ID)); err != nil {
		return err
	}
	return g.ctrd.HandOverContainer(ctx, ct.ID, g.guards && object.Task != nil)
}

// writeStatus writes what has happened under berth into the plug-in's file about a container.
func writeStatus(ct state.ContainerRecord, object adopt.Object, c *clock.Clock) error {
	path := adopt.StatusPath(ct.Adopted)
	was, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := adopt.StatusFile(was, ct, object, c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // as the plug-in makes it
		return err
	}
	return wholefile.Write(path, text, 0o600, os.Geteuid(), os.Getegid())
}
