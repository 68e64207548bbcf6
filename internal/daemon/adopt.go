// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/adopt"
	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/internal/connection"
	"berth/internal/ctrd"
	"berth/internal/logs"
	"berth/internal/namespace"
	"berth/internal/pidfd"
	"berth/internal/pod"
	"berth/internal/podfiles"
	"berth/internal/retry"
	"berth/internal/state"
	"berth/internal/wholefile"
)

const (
	// adoptAnswer is how long containerd may take to answer, also after it was restarted.
	adoptAnswer = time.Minute
	// adoptFlush is how long what is in the pipes of a container may take to be in its log.
	adoptFlush = 2 * time.Second
)

// Adopt takes over the pods of containerd's CRI plug-in, or gives them back, while they run. berth does
// not serve meanwhile: the records are locked. What is cut off is gone on with by the next call, in
// either direction.
func Adopt(ctx context.Context, cfg config.Config, r adopt.Request) (err error) {
	a := &adoption{
		cfg:     cfg,
		request: r,
		files:   podfiles.New(cfg.Root, cfg.State),
		held:    map[string][]*os.File{},
		kills:   map[string]oomKills{},
		records: map[string]adopt.Record{},
	}
	defer a.release()
	if cfg.Containerd.Address == "" {
		return errors.New("containerd runs inside berth: pods can be adopted where berth uses the node's containerd, which containerd.address names")
	}
	if a.conn, err = connection.Dial(cfg.Containerd.Address); err != nil {
		return err
	}
	defer a.conn.Close()
	if err := a.openRecords(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.closeRecords()) }()
	if err := a.reach(ctx); err != nil {
		return err
	}
	if r.Back {
		return a.giveAll(ctx)
	}
	return a.takeAll(ctx)
}

// adoption is one call of Adopt. It is the outside of package adopt's machine.
type adoption struct {
	cfg     config.Config
	request adopt.Request
	conn    *connection.Connection
	ctrd    *ctrd.Adoption
	files   *podfiles.Files
	store   *state.Store // nil: a dry run, and there is no other use of it
	loaded  state.Loaded // as the records were at the beginning
	plan    adopt.Plan
	found   adopt.Found
	held    map[string][]*os.File // pipes that are held open, by container
	// kills is what the counters of OOM kills have said while the containers ran, by container.
	kills map[string]oomKills

	mu      sync.Mutex
	records map[string]adopt.Record // by pod, as they are now
}

// oomKills is a reading of a counter of OOM kills.
type oomKills struct {
	count uint64
	at    time.Time
}

// openRecords opens the records. A dry run makes none, and does without those that a berth has open.
func (a *adoption) openRecords() (err error) {
	owner := ""
	if a.request.DryRun {
		if _, err := os.Stat(filepath.Join(a.cfg.Root, "berth.db")); errors.Is(err, fs.ErrNotExist) {
			a.ctrd = ctrd.NewAdoption(a.conn, "")
			return nil
		}
	} else if err := errors.Join(makeDir(a.cfg.Root, rootMode), makeDir(a.cfg.State, stateMode)); err != nil {
		return err
	}
	a.store, err = state.Open(a.cfg.Root)
	switch {
	case errors.Is(err, state.ErrInUse) && a.request.DryRun && !a.request.Back:
		a.store = nil
	case errors.Is(err, state.ErrInUse):
		return fmt.Errorf("berth serves, and pods are adopted while it does not: stop it (systemctl stop berth): %w", err)
	case err != nil:
		return err
	default:
		owner = a.store.Owner()
		if a.loaded, err = a.store.Load(); err != nil {
			return errors.Join(err, a.closeRecords())
		}
		for _, r := range adopt.Records(a.loaded) {
			a.records[r.ID] = r
		}
	}
	a.ctrd = ctrd.NewAdoption(a.conn, owner)
	return nil
}

func (a *adoption) closeRecords() error {
	if a.store == nil {
		return nil
	}
	s := a.store
	a.store = nil
	return s.Close()
}

// reach waits until containerd answers.
func (a *adoption) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adoptAnswer)
	defer cancel()
	var err error
	for range retry.Doubling(ctx.Done(), 20*time.Millisecond, time.Second) {
		if err = a.ctrd.Answers(ctx); err == nil {
			return nil
		}
	}
	return fmt.Errorf("containerd at %s does not answer: %w", a.cfg.Containerd.Address, errors.Join(err, ctx.Err()))
}

// takeAll takes over what the plug-in has.
func (a *adoption) takeAll(ctx context.Context) error {
	if err := a.look(ctx); err != nil {
		return err
	}
	if a.request.Planned != nil {
		a.request.Planned(a.plan)
	}
	if len(a.plan.Refused) > 0 {
		return a.refusal()
	}
	if a.request.DryRun {
		return nil
	}
	serves, err := a.ctrd.Serves(ctx)
	if err != nil {
		return err
	}
	switch {
	case serves && a.request.Switch == "":
		return errors.New("containerd's CRI plug-in serves: add it to disabled_plugins in containerd's configuration, and give the command that restarts containerd as --switch; nothing was changed")
	case serves:
		if err := a.turnOff(ctx); err != nil {
			return err
		}
	case a.request.Switch != "":
		a.request.Said("containerd's CRI plug-in is off already: --switch is not run")
	}
	if err := a.hold(); err != nil {
		return err
	}
	began := time.Now()
	ids := make([]string, len(a.plan.Pods))
	for i, p := range a.plan.Pods {
		ids[i] = p.ID
	}
	if err := a.move(ctx, ids, adopt.Take); err != nil {
		return err
	}
	if err := a.forgetGone(ctx); err != nil {
		return err
	}
	if err := a.ctrd.Sweep(ctx); err != nil {
		return err
	}
	a.request.Said("%d pods are berth's, after %s", len(a.plan.Pods), time.Since(began).Round(time.Millisecond))
	return a.handToBerth(ctx)
}

// adoptAtOnce is how many pods are moved at the same time. Each waits for the disk, of the records and of
// containerd.
const adoptAtOnce = 16

// move moves pods, side by side. Those that are under way when one of them fails are moved to the end.
func (a *adoption) move(ctx context.Context, ids []string, to adopt.Direction) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(adoptAtOnce)
	for _, id := range ids {
		g.Go(func() error {
			if gctx.Err() != nil {
				return gctx.Err() // another one has failed, or the operator has had enough
			}
			return adopt.Move(ctx, a, id, a.ownerOf(id), to)
		})
	}
	return g.Wait()
}

func (a *adoption) refusal() error {
	return fmt.Errorf("%d pods or containers cannot be adopted, and nobody would serve them while the plug-in is off: remove them, or change what the remarks say; nothing was changed", len(a.plan.Refused))
}

// turnOff has the command of the operator turn the plug-in off. Meanwhile the tasks are guarded from
// containerd's clean-up, and the pipes are held open, so that no exit code and no output is lost.
func (a *adoption) turnOff(ctx context.Context) (err error) {
	var guarded []string
	defer func() {
		if err == nil {
			return
		}
		for _, id := range guarded {
			err = errors.Join(err, a.ctrd.Unguard(context.WithoutCancel(ctx), id))
		}
	}()
	if err := a.hold(); err != nil {
		return err
	}
	for _, p := range a.plan.Pods {
		for _, ct := range p.Containers {
			if ct.Task == nil {
				continue
			}
			guarded = append(guarded, ct.ID)
			if err := a.ctrd.Guard(ctx, ct.ID); err != nil {
				return err
			}
		}
	}
	if err := a.command(ctx, "--switch", a.request.Switch); err != nil {
		return err
	}
	if err := a.reach(ctx); err != nil {
		return err
	}
	serves, err := a.ctrd.Serves(ctx)
	if err != nil {
		return err
	}
	if serves {
		return errors.New("containerd's CRI plug-in serves after --switch as before it: does disabled_plugins name it, and was containerd restarted? The pods are the plug-in's as before")
	}
	if err := a.look(ctx); err != nil { // it may have made and removed some
		return err
	}
	if len(a.plan.Refused) > 0 {
		return a.refusal()
	}
	return nil
}

// command runs a command of the operator's.
func (a *adoption) command(ctx context.Context, flag, line string) error {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	cmd.Stdout, cmd.Stderr = a.request.Output, a.request.Output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %q: %w", flag, line, err)
	}
	a.request.Said("%s took %s", flag, time.Since(began).Round(time.Millisecond))
	return nil
}

// countKills reads the counter of OOM kills of a container that runs: what it says now is no reason of
// an end that comes later.
func (a *adoption) countKills(ct adopt.Container) {
	if ct.Status.Process.Pid == 0 {
		return
	}
	st := ct.Status
	a.identify(ct.ID, &st)
	if st.OOMKills > 0 {
		a.kills[ct.ID] = oomKills{st.OOMKills, st.OOMKilledAt}
	}
}

// hold holds the pipes of all containers of the plan open, and counts their OOM kills.
func (a *adoption) hold() error {
	for _, p := range a.plan.Pods {
		for _, ct := range p.Containers {
			if ct.Task == nil || a.held[ct.ID] != nil {
				continue
			}
			held, err := logs.HoldPipes(pipesOf(ct.Task))
			if err != nil {
				return fmt.Errorf("container %s: %w", ct.ID, err)
			}
			a.held[ct.ID] = held
			a.countKills(ct)
		}
	}
	return nil
}

// release closes the pipes that are held open.
func (a *adoption) release() {
	for _, files := range a.held {
		for _, f := range files {
			_ = f.Close()
		}
	}
	clear(a.held)
}

func pipesOf(t *adopt.Task) logs.Pipes {
	return logs.Pipes{Stdin: t.Stdin, Stdout: t.Stdout, Stderr: t.Stderr}
}

// handToBerth has the command of the operator start berth while the pipes are held open. Without one,
// what is in the pipes goes into the logs now: of a container that has ended, nobody holds them then.
func (a *adoption) handToBerth(ctx context.Context) error {
	if a.request.Start == "" {
		for _, p := range a.plan.Pods {
			for _, ct := range p.Containers {
				if err := a.flush(ctx, ct.ID, pod.StdioOptions(a.files.IO(ct.ID), &p.Sandbox, &ct.Container, a.cfg.Logs.MaxLine)); err != nil {
					a.request.Said("container %s: %v", ct.ID, err)
				}
			}
		}
		return nil
	}
	if err := a.closeRecords(); err != nil {
		return err
	}
	return a.command(ctx, "--start", a.request.Start)
}

// flush brings what is in the pipes of a container into its log.
func (a *adoption) flush(ctx context.Context, id string, o logs.Options) error {
	l, err := logs.Open(o)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- l.Run(context.WithoutCancel(ctx)) }()
	within, cancel := context.WithTimeout(ctx, adoptFlush)
	defer cancel()
	err = l.Flush(within)
	if err = errors.Join(err, l.Close(), <-ran); err != nil {
		return fmt.Errorf("write the rest of its output into its log: %w", err)
	}
	return nil
}

// look finds out what there is, and plans.
func (a *adoption) look(ctx context.Context) (err error) {
	if a.found, err = a.find(ctx); err != nil {
		return err
	}
	s := adopt.Settings{
		Handlers:  map[string]adopt.Handler{},
		Default:   a.cfg.DefaultRuntime,
		Taking:    map[string]bool{},
		Now:       time.Now(),
		CgroupDir: cgroup.Dir,
		Held:      a.request.Switch != "",
	}
	for name, r := range a.cfg.Runtimes {
		s.Handlers[name] = adopt.Handler{Name: name, Type: r.Type, HostProcess: r.HostProcess}
	}
	if a.store != nil {
		s.Own = a.store.Owner()
	}
	for _, r := range adopt.Unsettled(a.loaded) {
		s.Taking[r.ID] = true
	}
	a.plan = adopt.MakePlan(a.found, s)
	return nil
}

// find gathers what there is of the plug-in's pods.
func (a *adoption) find(ctx context.Context) (f adopt.Found, err error) {
	volatile := a.request.ContainerdState
	if volatile == "" {
		volatile = filepath.Dir(strings.TrimPrefix(a.cfg.Containerd.Address, "unix://"))
	}
	if f.Root, f.State, err = a.ctrd.Dirs(ctx, volatile); err != nil {
		return f, err
	}
	if f.Objects, err = a.ctrd.Objects(ctx); err != nil {
		return f, err
	}
	if f.ImageRefs, err = a.ctrd.ImageRefs(ctx); err != nil {
		return f, err
	}
	f.Statuses, f.Networks = map[string][]byte{}, map[string][]adopt.Cached{}
	f.ImageVolumes, f.Pinned = map[string][]string{}, map[string]bool{}
	for _, o := range f.Objects {
		b, err := os.ReadFile(filepath.Join(f.Root, "containers", o.ID, "status"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return f, fmt.Errorf("read what the plug-in says of %s: %w", o.ID, err)
		}
		if err == nil {
			f.Statuses[o.ID] = b
		}
		if f.ImageVolumes[o.ID], err = below(filepath.Join(f.State, "image-volumes", o.ID)); err != nil {
			return f, err
		}
	}
	if err := a.findNetworks(&f); err != nil {
		return f, err
	}
	for _, path := range adopt.NetworkNamespaces(f) {
		if f.Pinned[path], err = namespace.IsPinned(path); err != nil {
			return f, fmt.Errorf("look for the network namespace %s: %w", path, err)
		}
	}
	return f, nil
}

// below lists what is in a directory; nothing if it is not there.
func below(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths, nil
}

// findNetworks reads CNI's cached results of the pods. Their names end with the ID and the interface.
func (a *adoption) findNetworks(f *adopt.Found) error {
	cached, err := below(filepath.Join(a.request.CNICache, "results"))
	if err != nil {
		return fmt.Errorf("look for CNI's cached results: %w", err)
	}
	for _, o := range f.Objects {
		for _, path := range cached {
			if !strings.Contains(filepath.Base(path), "-"+o.ID+"-") {
				continue
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read CNI's cached result: %w", err)
			}
			f.Networks[o.ID] = append(f.Networks[o.ID], adopt.Cached{Path: path, Text: b})
		}
	}
	return nil
}

// recorded returns the record of a pod, as it is now.
func (a *adoption) recorded(id string) (adopt.Record, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.records[id]
	return r, ok
}

func (a *adoption) planned(id string) (adopt.Pod, bool) {
	for _, p := range a.plan.Pods {
		if p.ID == id {
			return p, true
		}
	}
	return adopt.Pod{}, false
}

func (a *adoption) ownerOf(id string) state.Owner {
	r, _ := a.recorded(id)
	return r.Sandbox.Status.Owner
}

// Note commits who owns a pod. It implements adopt.Outside.
func (a *adoption) Note(_ context.Context, id string, owner state.Owner) error {
	var changes []state.Change
	r, known := a.recorded(id)
	p, found := a.planned(id)
	switch {
	case owner == state.OwnerPlugIn:
		changes = append(changes, state.DeleteSandbox(id))
		for _, ct := range r.Containers {
			changes = append(changes, state.DeleteContainer(ct.ID))
		}
	case owner == state.OwnerTaking && found:
		r, changes = a.newRecords(p, r)
	case known:
		r.Sandbox.Status.Owner = owner
		changes = append(changes, state.SandboxStatus(id, r.Sandbox.Status))
	default:
		return fmt.Errorf("there is no record of it: %w", errdefs.ErrNotFound)
	}
	if err := a.store.Commit(changes...); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records[id] = r
	if owner == state.OwnerPlugIn {
		delete(a.records, id)
	}
	return nil
}

// newRecords are the changes that put a pod of the plan on record, and what is on record then. What was
// taken already before an adoption, or its way back, was cut off, stays as it is on record: nobody else
// knows it better.
func (a *adoption) newRecords(p adopt.Pod, before adopt.Record) (after adopt.Record, changes []state.Change) {
	known := map[string]state.ContainerRecord{}
	for _, ct := range before.Containers {
		known[ct.ID] = ct
	}
	after = adopt.Record{ID: p.ID, Namespace: p.Namespace, Name: p.Name, State: p.State}
	after.Sandbox = state.SandboxRecord{Sandbox: p.Sandbox, Status: p.Status}
	a.identify(p.ID, &after.Sandbox.Status)
	changes = append(changes, state.NewSandbox(p.Sandbox, after.Sandbox.Status))
	for _, ct := range p.Containers {
		r, ok := known[ct.ID]
		delete(known, ct.ID)
		if !ok || !ct.Taken {
			r = state.ContainerRecord{Container: ct.Container, Status: ct.Status}
			a.identify(ct.ID, &r.Status)
			changes = append(changes, state.NewContainer(r.Container, r.Status))
		}
		after.Containers = append(after.Containers, r)
	}
	for id := range known { // the plug-in has removed it since
		changes = append(changes, state.DeleteContainer(id))
	}
	return after, changes
}

// identify completes what a record says of a process. Of one that has ended meanwhile only the cgroup
// is kept: its shim has its code, and the cgroup says whether it was the OOM killer. OOM kills that the
// process has survived are no reason of its end.
func (a *adoption) identify(id string, st *state.Status) {
	if k, ok := a.kills[id]; ok {
		st.OOMKills, st.OOMKilledAt = k.count, k.at
	}
	if st.Process.Pid == 0 {
		return
	}
	fd, p, err := pidfd.OpenProcess(st.Process.Process)
	if err != nil {
		st.Process = state.Process{Cgroup: st.Process.Cgroup} // the pid comes from the shim, which berth asks
		return
	}
	defer unix.Close(fd)
	group, err := cgroup.Of(p.Pid)
	kills, kerr := cgroup.OOMKills(group)
	if err != nil || pidfd.Ask(fd) != pidfd.Alive {
		st.Process.Process = p
		return // what was read may be about another process, or about the end of this one
	}
	st.Process = state.Process{Process: p, Cgroup: group}
	if kerr == nil && kills > st.OOMKills {
		st.OOMKills, st.OOMKilledAt = kills, time.Now()
	}
}

// TakeOver makes what is outside berth's. It implements adopt.Outside.
func (a *adoption) TakeOver(ctx context.Context, id string) error {
	p, ok := a.planned(id)
	if !ok {
		return fmt.Errorf("containerd does not have it any more: %w", errdefs.ErrNotFound)
	}
	for _, c := range p.Caches {
		if err := a.copyCache(c); err != nil {
			return err
		}
	}
	for _, ct := range p.Containers {
		if ct.Task != nil {
			if err := a.adoptOutput(p, ct); err != nil {
				return fmt.Errorf("container %s: %w", ct.ID, err)
			}
		}
		if err := a.ctrd.TakeOver(ctx, ct.ID, false); err != nil {
			return err
		}
	}
	return a.ctrd.TakeOver(ctx, id, true)
}

func (a *adoption) adoptOutput(p adopt.Pod, ct adopt.Container) error {
	line := ""
	if ct.Status.Phase == state.Running {
		line = adopt.LogLine
	}
	err := logs.Adopt(pod.StdioOptions(a.files.IO(ct.ID), &p.Sandbox, &ct.Container, a.cfg.Logs.MaxLine), pipesOf(ct.Task), line)
	switch {
	case errors.Is(err, logs.ErrLog): // berth tries again, and its output waits meanwhile
		a.request.Said("container %s: %v", ct.ID, err)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		a.request.Said("container %s: its pipes are gone, and what was in them: %v", ct.ID, err)
		return nil
	}
	return err
}

// cacheFor is where berth's own libcni looks for a cached result.
func (a *adoption) cacheFor(path string) string {
	return filepath.Join(a.cfg.Root, "cni", "results", filepath.Base(path))
}

// copyCache gives berth's libcni the result that a plug-in needs to disconnect a pod.
func (a *adoption) copyCache(c adopt.Cached) error {
	to := a.cacheFor(c.Path)
	if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, c.Text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return wholefile.Write(to, c.Text, 0o600, os.Geteuid(), os.Getegid())
}

// forgetGone forgets pods of which an adoption that was cut off has a record, and containerd nothing.
func (a *adoption) forgetGone(ctx context.Context) error {
	for _, r := range adopt.Unsettled(a.loaded) { // as it was at the beginning
		if _, ok := a.planned(r.ID); ok {
			continue
		}
		a.request.Said("pod %s/%s (%s) is gone: its record is deleted", r.Namespace, r.Name, r.ID)
		if err := a.Note(ctx, r.ID, state.OwnerPlugIn); err != nil {
			return err
		}
	}
	return nil
}

// giveAll gives the pods back that the plug-in can have.
func (a *adoption) giveAll(ctx context.Context) (err error) {
	if a.found, err = a.find(ctx); err != nil {
		return err
	}
	back := adopt.MakeBack(a.loaded, a.found)
	if a.request.PlannedBack != nil {
		a.request.PlannedBack(back)
	}
	switch {
	case len(back.Kept) > 0 && !a.request.Leave:
		return fmt.Errorf("%d pods cannot be the plug-in's, and nobody would serve them while berth does not: do what the remarks say, or leave them with --leave; nothing was changed", len(back.Kept))
	case a.request.DryRun:
		return nil
	}
	serves, err := a.ctrd.Serves(ctx)
	if err != nil {
		return err
	}
	if serves {
		return errors.New("containerd's CRI plug-in serves: it has to be off until the pods are its own again; nothing was changed")
	}
	ids := make([]string, len(back.Pods))
	for i, r := range back.Pods {
		ids[i] = r.ID
	}
	if err := a.move(ctx, ids, adopt.Give); err != nil {
		return err
	}
	a.request.Said("%d pods are the plug-in's: take it off disabled_plugins, and restart containerd", len(back.Pods))
	if a.request.Switch == "" {
		return nil
	}
	if err := a.closeRecords(); err != nil {
		return err
	}
	return a.command(ctx, "--switch", a.request.Switch)
}

// HandOver makes what is outside the plug-in's. It implements adopt.Outside.
func (a *adoption) HandOver(ctx context.Context, id string) error {
	r, ok := a.recorded(id)
	if !ok {
		return fmt.Errorf("there is no record of it: %w", errdefs.ErrNotFound)
	}
	for _, ct := range r.Containers {
		if err := a.handOverContainer(ctx, r, ct); err != nil {
			return fmt.Errorf("container %s: %w", ct.ID, err)
		}
	}
	if r.Sandbox.Adopted != nil {
		for _, path := range r.Sandbox.Adopted.Files {
			if err := os.Remove(a.cacheFor(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return a.ctrd.HandOver(ctx, id, adopt.SandboxName(r.Sandbox.Config))
}

func (a *adoption) handOverContainer(ctx context.Context, r adopt.Record, ct state.ContainerRecord) error {
	var object adopt.Object
	for _, o := range a.found.Objects {
		if o.ID == ct.ID {
			object = o
		}
	}
	if object.Owner != "" { // or it was handed over before this was cut off, and the plug-in may have had it
		if err := a.flush(ctx, ct.ID, pod.StdioOptions(a.files.IO(ct.ID), &r.Sandbox.Sandbox, &ct.Container, a.cfg.Logs.MaxLine)); err != nil {
			return err
		}
		path := adopt.StatusPath(ct.Adopted)
		was, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text, err := adopt.StatusFile(was, ct, object)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // as the plug-in makes it
		}
		if err == nil {
			err = wholefile.Write(path, text, 0o600, os.Geteuid(), os.Getegid())
		}
		if err != nil {
			return err
		}
	}
	if err := logs.RemoveAll(a.files.IO(ct.ID)); err != nil {
		return err
	}
	return a.ctrd.HandOver(ctx, ct.ID, "")
}
