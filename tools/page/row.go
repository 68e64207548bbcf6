// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/base/event"
	"berth/internal/base/exit"
)

// drawing is a row while it is drawn.
type drawing struct {
	row    Row
	lives  []*life
	stops  map[string][]time.Time // of sandboxes, by their IDs
	made   map[string][]madeAt    // containers, by sandbox and name
	latest map[string]time.Time   // the instants by which IDs were chosen
	crash  map[string]event.ContainerCrashed
}

type madeAt struct {
	id string
	at time.Time
}

// life is the history of one sandbox or container, as far as it was read.
type life struct {
	id      string
	names   event.Names
	first   time.Time
	ready   time.Time // READY, or RUNNING
	created time.Time
	making  time.Time // when its creation began, while that is not drawn
	silent  time.Time // its creation waits
	path    string
	exit    *event.Exit
	exitAt  time.Time
	stops   []stopAsked
	pulls   map[string]time.Time
	removed time.Time
	notMade bool

	// A release:
	from, to time.Time
	failing  string
}

type stopAsked struct {
	event.StopRequested
	at time.Time
}

// draw makes the row of the IDs of one pod.
func (h *History) draw(name string, ids []string) Row {
	d := &drawing{
		row: Row{
			Name:       name,
			Containers: []string{},
			IDs:        map[string]string{},
			Bars:       []Bar{},
			Marks:      []Mark{},
			Counts:     map[MarkKind]int{},
		},
		stops:  map[string][]time.Time{},
		made:   map[string][]madeAt{},
		latest: map[string]time.Time{},
		crash:  map[string]event.ContainerCrashed{},
	}
	d.row.Namespace, d.row.Pod, _ = strings.Cut(name, "/")
	d.row.Workload = workload(d.row.Pod)
	var all []entry
	lives := map[string]*life{}
	for _, id := range ids {
		all = append(all, h.byID[id]...)
	}
	slices.SortStableFunc(all, byTime)
	for _, n := range all {
		l := lives[n.id]
		if l == nil {
			l = &life{id: n.id, names: h.names[n.id], first: n.at, pulls: map[string]time.Time{}}
			lives[n.id] = l
			d.lives = append(d.lives, l)
			if c := l.names.Container; c != "" && !slices.Contains(d.row.Containers, c) {
				d.row.Containers = append(d.row.Containers, c)
			}
			d.row.UID = cmp.Or(l.names.UID, d.row.UID)
			d.row.IDs[l.names.Container] = n.id
		}
		d.row.Last = max(d.row.Last, n.number)
		d.row.Lines = append(d.row.Lines, Line{
			Number:    n.number,
			At:        n.at,
			Container: l.names.Container,
			Attempt:   l.names.Attempt,
			Kind:      n.kind,
			By:        string(n.line.Actor),
			What:      n.line.Message,
			Detail:    bound(detail(n.line.Attrs)),
			Err:       bound(n.line.Err),
			weight:    weightOf(n),
		})
		d.note(l, n)
	}
	for _, l := range d.lives {
		d.finish(l)
	}
	d.addCrashes()
	slices.SortStableFunc(d.row.Bars, func(x, y Bar) int { return x.From.Compare(y.From) })
	slices.SortStableFunc(d.row.Marks, func(x, y Mark) int { return x.At.Compare(y.At) })
	for _, m := range d.row.Marks {
		d.row.Counts[m.Kind]++
	}
	return d.row
}

func (d *drawing) bar(l *life, b Bar) {
	b.Container, b.Attempt = l.names.Container, l.names.Attempt
	d.row.Bars = append(d.row.Bars, b)
}

func (d *drawing) mark(l *life, kind MarkKind, at time.Time, text string) {
	d.row.Marks = append(d.row.Marks, Mark{kind, l.names.Container, l.names.Attempt, at, bound(text)})
}

// note takes note of one entry.
func (d *drawing) note(l *life, n entry) {
	if kind, ok := plain[n.kind]; ok {
		d.mark(l, kind, n.at, lineText(n.line))
	}
	switch e := n.event.(type) {
	case event.SandboxNotMade:
		l.notMade = true
	case event.SandboxReady:
		l.ready = n.at
		d.bar(l, Bar{Kind: BarCreate, From: n.at.Add(-e.Took), To: n.at})
	case event.ContainerCreated:
		l.created, l.silent, l.making = n.at, time.Time{}, n.at.Add(-e.Took)
		key := l.names.Sandbox + "/" + l.names.Container
		d.made[key] = append(d.made[key], madeAt{l.id, n.at})
	case event.ContainerNotMade:
		if !l.silent.IsZero() {
			d.bar(l, Bar{Kind: BarCreate, From: l.silent, To: n.at, Held: true, Note: l.path})
		}
		l.silent, l.notMade = time.Time{}, true
	case event.ContainerRunning:
		l.ready = n.at
		began := n.at.Add(-e.Took)
		if !l.making.IsZero() && began.Sub(l.created) < soon {
			began = l.making // one bar for both
		} else if !l.making.IsZero() {
			d.bar(l, Bar{Kind: BarCreate, From: l.making, To: l.created})
		}
		l.making = time.Time{}
		d.bar(l, Bar{Kind: BarCreate, From: began, To: n.at})
	case event.HostPathSilent:
		l.silent, l.path = n.at, "the file system below "+e.Path+" does not answer"
	case event.StopRequested:
		l.stops = append(l.stops, stopAsked{e, n.at})
		if l.names.Container == "" {
			d.stops[l.id] = append(d.stops[l.id], n.at)
			l.release(n.at)
		}
	case event.PullBegan:
		l.pulls[e.Image] = n.at
	case event.ImagePulled:
		d.pulled(l, e.Image, n.at, e.Took, "")
	case event.ImageNotPulled:
		d.pulled(l, e.Image, n.at, e.Took, e.Err)
	case event.ProfilePulled:
		d.pulled(l, e.Profile, n.at, e.Took, "")
	case event.ProfileNotPulled:
		d.pulled(l, e.Profile, n.at, e.Took, e.Err)
	case event.ExitSettled:
		d.end(l, e.Exit, n.at)
	case event.ExitCorrected:
		d.end(l, e.Exit, n.at)
	case event.ExitRecalled:
		d.end(l, e.Exit, n.at)
	case event.ContainerCrashed:
		d.crash[e.Container] = e
	case event.AttemptFailed:
		if e.Step == "release" {
			l.release(n.at)
			l.failing = cmp.Or(e.Err, "the release does not succeed")
		}
	case event.Released:
		l.to, l.failing = n.at, ""
	case event.RemovalRequested:
		if !l.to.IsZero() && l.failing == "" {
			d.bar(l, Bar{Kind: BarRelease, From: l.from, To: l.to})
			l.from, l.to = time.Time{}, time.Time{}
		}
		l.release(n.at)
	case event.Removed:
		l.removed, l.to, l.failing = n.at, n.at, ""
	}
}

func (l *life) release(at time.Time) {
	if l.from.IsZero() {
		l.from = at
	}
}

// end takes note of an exit, or of a better one.
func (d *drawing) end(l *life, e event.Exit, at time.Time) {
	if l.exit == nil {
		if l.names.Container == "" { // even if the history lacks the stop that came before it
			d.stops[l.id] = append(d.stops[l.id], cmp.Or(e.Ended.Stamp(), at))
		}
		l.exitAt = at
		l.release(at)
	}
	l.exit = &e
}

func (d *drawing) pulled(l *life, image string, at time.Time, took time.Duration, err string) {
	from, ok := l.pulls[image]
	if !ok {
		from = at.Add(-took)
	}
	delete(l.pulls, image)
	b := Bar{Kind: BarPull, From: from, To: at, Note: image}
	if err != "" {
		b.Held, b.Note = true, bound(image+": "+err)
	}
	d.bar(l, b)
}

// soon is how much time there may be between the creation of a container and its start, if both are
// drawn as one bar.
const soon = time.Second

// finish draws the parts that are known once all entries were read.
func (d *drawing) finish(l *life) {
	for image, from := range l.pulls {
		d.bar(l, Bar{Kind: BarPull, From: from, Note: image})
	}
	if !l.silent.IsZero() {
		d.bar(l, Bar{Kind: BarCreate, From: l.silent, Held: true, Note: l.path})
	}
	if !l.making.IsZero() {
		d.bar(l, Bar{Kind: BarCreate, From: l.making, To: l.created})
	}
	ended := time.Time{}
	if l.exit != nil {
		if ended = l.exit.Ended.Stamp(); ended.IsZero() || ended.After(l.exitAt) {
			ended = l.exitAt
		}
	}
	if l.names.Container == "" {
		ended = cmp.Or(ended, l.removed)
		if !l.ready.IsZero() || l.exit != nil || l.names.Pod != "" && !l.notMade {
			d.bar(l, Bar{Kind: BarSandbox, From: l.ready, To: ended})
		}
	} else {
		d.container(l, ended)
	}
	switch {
	case l.failing != "":
		d.bar(l, Bar{Kind: BarRelease, From: l.from, Held: true, Note: bound(l.failing)})
	case !l.from.IsZero() && !l.to.IsZero():
		d.bar(l, Bar{Kind: BarRelease, From: l.from, To: l.to})
	}
}

// container draws the run of a container, its end, and the stops that it alone was asked for.
func (d *drawing) container(l *life, ended time.Time) {
	ended = cmp.Or(ended, l.removed)
	// An object without a beginning in the history ran already before it, unless it never did.
	before := l.created.IsZero() && !l.notMade && l.silent.IsZero() && (l.exit == nil || l.exit.Witness != exit.Start)
	if !l.ready.IsZero() || before {
		d.bar(l, Bar{Kind: BarRun, From: l.ready, To: ended})
	}
	for _, s := range l.stops {
		if d.alone(l, s) {
			d.mark(l, ProbeKill, s.at, aloneText(s))
		}
	}
	if l.exit != nil {
		kind := exitKind(*l.exit, slices.ContainsFunc(l.stops, func(s stopAsked) bool { return !s.at.After(ended) }))
		d.mark(l, kind, ended, exitText(*l.exit, kind))
	}
}

// podStopWithin is how long after the stops of its containers that of a pod comes, besides the time
// that the containers have to end.
const podStopWithin = 30 * time.Second

// alone reports whether a stop is about a container and not about its pod. The kubelet stops the
// containers of a pod before the pod, so the stop of the pod may come later.
func (d *drawing) alone(l *life, s stopAsked) bool {
	if s.Pod {
		return false
	}
	for _, c := range d.made[l.names.Sandbox+"/"+l.names.Container] {
		if c.id != l.id && c.at.After(s.at) {
			return true // another one took its place in the same pod
		}
	}
	return !slices.ContainsFunc(d.stops[l.names.Sandbox], func(at time.Time) bool {
		return at.Before(s.at.Add(s.Timeout + podStopWithin))
	})
}

func aloneText(s stopAsked) string {
	who := "a client of CRI"
	if by := s.By.String(); by != "" {
		who = by
	}
	text := fmt.Sprintf("%s stopped this container and not its pod", who)
	if s.By.IsZero() || strings.HasPrefix(s.By.Name, "kubelet") {
		text += ": a liveness or startup probe has failed, or the container is to be another one"
	}
	return text
}

func (d *drawing) addCrashes() {
	for _, name := range d.row.Containers {
		e, ok := d.crash[name]
		if !ok {
			continue
		}
		d.row.Crashes = append(d.row.Crashes, Crash{
			Container: name,
			Count:     e.Count,
			First:     e.First.Ended.Stamp(),
			At:        e.Last.Ended.Stamp(),
			Code:      e.Last.Code,
			Reason:    e.Last.Reason,
			Memory:    e.Last.Memory,
			CPUMillis: e.Last.CPU.Milliseconds(),
			Log:       e.Last.Log,
		})
	}
}
