// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/ops"
	"berth/internal/history/recorder"
)

// Cause is a cause in one word.
type Cause string

// The causes. Those of an end:
const (
	Completed       Cause = "completed"         // by itself, with code 0
	Failed          Cause = "failed"            // by itself, with another code
	Signalled       Cause = "signalled"         // by a signal that berth did not send
	OOM             Cause = "oom"               // by the OOM killer, whose limit is not known
	OOMOfContainer  Cause = "oom-container"     // at its own limit
	OOMOfPod        Cause = "oom-pod"           // at that of its pod
	OOMAbove        Cause = "oom-above"         // at that of a cgroup above its pod
	OOMOfNode       Cause = "oom-node"          // the node had no memory left
	Stopped         Cause = "stopped"           // alone, while its pod goes on
	PodStopped      Cause = "pod-stopped"       // with its pod
	StoppedByClient Cause = "stopped-by-client" // by a client that is not the kubelet
	ShutDown        Cause = "shut-down"         // the machine was
	ShimKilled      Cause = "shim-killed"
	LoggerKilled    Cause = "logger-killed" // nobody could read what it wrote
	Rebooted        Cause = "rebooted"
	Unmeasured      Cause = "unknown" // nobody knows
)

// What keeps it from running:
const (
	NotStarted     Cause = "start-failed"
	NotCreated     Cause = "not-created"
	PodNotMade     Cause = "pod-not-made"
	ImageNotPulled Cause = "image-not-pulled"
	ImageRefused   Cause = "image-refused"
	VolumeSilent   Cause = "volume-silent"
	NotOnRecord    Cause = "end-not-on-record" // it has ended, which everybody sees once it is on the disk
	UnderWay       Cause = "under-way"         // it is being made, started, stopped or removed
)

// And nothing at all:
const (
	Runs    Cause = "runs"
	Created Cause = "created" // and not started
	Unheard Cause = "no-end-known"
)

// Answer says why, in sentences. A sentence is empty where there is nothing to say.
type Answer struct {
	Of    string `json:"of"` // NAMESPACE/POD or NAMESPACE/POD/CONTAINER
	ID    string `json:"id"`
	Cause Cause  `json:"cause"`
	// What has happened, and Why.
	What string `json:"what"`
	Why  string `json:"why,omitempty"`
	// Wrote has the last lines of the log.
	Wrote []string `json:"wrote,omitempty"`
	// Before says how often that has happened, and Now what comes next.
	Before string `json:"before,omitempty"`
	Now    string `json:"now,omitempty"`

	weight weight
	at     clock.Instant
}

// weight says which of several answers about one pod a person needs.
type weight int

const (
	fine     weight = iota // it goes on, or has ended as it should
	ended                  // it was ended by somebody
	broken                 // it has failed
	hindered               // it cannot run now
)

// Explain says why a container or a pod is as it is. found is what the history has of it, with that
// of its pod, of all attempts, and of the node. ended is what is known of ends that are not on
// record yet, by the ID of what has ended; nil where only the history is known. list is what is
// under way of it now, at the time at, which has the form that operations have.
func Explain(found recorder.Answer, ended map[string]event.Exit, now clock.Instant, list []ops.Operation, at time.Time) Answer {
	a := explain(found, ended, now)
	about := ops.Object{ID: a.ID, Names: found.Names}
	if of, ok := found.Of[a.ID]; ok {
		about.Names = of
	}
	sentences := ops.Sentences(list, about, at)
	if len(sentences) == 0 {
		return a
	}
	// If nothing has failed, that it is being made or ended is what there is to say.
	if a.weight == fine && slices.ContainsFunc(list, changes) {
		a.Cause, a.weight = UnderWay, hindered
		a.What, a.Why, a.Now = strings.Join(ops.Sentences(list, ops.Object{}, at), " "), "", ""
		return a
	}
	a.Now = strings.TrimSuffix(strings.ToLower(sentences[0][:1])+strings.Join(sentences, " ")[1:], ".")
	return a
}

// changes reports whether an operation makes or ends its object, or is without an end in its
// history.
func changes(o ops.Operation) bool {
	return slices.Contains([]ops.Kind{ops.Run, ops.Create, ops.Start, ops.Stop, ops.Remove, ops.Pull}, o.Kind)
}

// explain says what the history has.
func explain(found recorder.Answer, ended map[string]event.Exit, now clock.Instant) Answer {
	s := tell(found)
	s.ended = ended
	var answers []Answer
	for name, lives := range s.containers {
		if found.Names.Container == "" || name == found.Names.Container {
			answers = append(answers, s.ofContainer(lives, now)...)
		}
	}
	answers = append(answers, s.ofPod(found.Names.Container, now)...)
	if len(answers) == 0 {
		return Answer{
			Of:    found.Name,
			ID:    found.ID,
			Cause: Unheard,
			What:  found.Name + ": the history does not go back to its start, and has no end of it.",
		}
	}
	a := slices.MaxFunc(answers, func(x, y Answer) int {
		return cmp.Or(cmp.Compare(x.weight, y.weight), x.at.Compare(y.at), strings.Compare(y.Of, x.Of))
	})
	first := slices.IndexFunc(found.Entries, func(n recorder.Entry) bool { return n.ID == a.ID })
	if n := len(s.steps) - 1; n >= 0 && first >= 0 && s.steps[n].At.After(found.Entries[first].At) {
		step := s.steps[n].Event.(event.ClockSet)
		a.Why = strings.TrimSpace(fmt.Sprintf("%s Meanwhile, %s, the clock was set from %s to %s.", a.Why, ago(s.steps[n].At, now),
			step.From.UTC().Format(time.RFC3339), step.To.UTC().Format(time.RFC3339)))
	}
	return a
}

// ofContainer explains the containers of one name, the latest of which is the last.
func (s *story) ofContainer(lives []*life, now clock.Instant) (answers []Answer) {
	last := lives[len(lives)-1]
	var next string
	switch {
	case last.exit != nil:
		next = "it does not run; whether it is started again is the kubelet's to decide"
	case last.failure != nil:
		next = "its creation failed; the kubelet tries again if the pod is to go on"
	case last.held != nil:
		next = "it was killed and has not ended: " + last.held.By
	case !last.running.IsZero():
		next = fmt.Sprintf("attempt %d has run for %s", last.names.Attempt, span(last.running, now))
	case !last.silent.IsZero():
		next = "its creation waits for that file system"
	case !last.created.IsZero():
		next = fmt.Sprintf("attempt %d is CREATED, and was not started", last.names.Attempt)
	}
	if !last.removed.IsZero() {
		next = "nothing, it was removed " + ago(last.removed, now)
	}
	if a, ok := s.notOnRecord(last, now); ok {
		return append(answers, a)
	}
	if a, ok := s.hindrance(last, now); ok {
		a.Now = next
		answers = append(answers, a)
	}
	for _, l := range slices.Backward(lives) {
		if l.exit != nil {
			a := s.end(l, now)
			a.Now = next
			if l != last && a.weight == ended {
				a.weight = fine // another one took its place, as it was meant to
			}
			return append(answers, a)
		}
	}
	a := Answer{Of: last.name(), ID: last.id, at: last.running, Now: next}
	switch {
	case len(answers) > 0:
		return answers
	case !last.running.IsZero():
		a.Cause = Runs
		a.What = fmt.Sprintf("%s (attempt %d) has run for %s, and no end of one before it is in the history.",
			a.Of, last.names.Attempt, span(last.running, now))
		a.Now = ""
	case !last.created.IsZero():
		a.Cause, a.at = Created, last.created
		a.What = fmt.Sprintf("%s (attempt %d) was created %s, and was not started.", a.Of, last.names.Attempt, ago(last.created, now))
		a.Now = "waits for the kubelet to start it"
	default:
		a.Cause, a.at = Unheard, last.first
		a.What = a.Of + ": the history has no end of it."
	}
	return append(answers, a)
}

// notOnRecord says that a container has ended, and what keeps that from its record.
func (s *story) notOnRecord(l *life, now clock.Instant) (Answer, bool) {
	a := Answer{Of: l.name(), ID: l.id, Cause: NotOnRecord, weight: hindered, at: now}
	e, ended := s.ended[l.id]
	if !ended && l.reported != nil && l.unsettled != nil {
		e, ended = *l.reported, true
	}
	if !ended || l.exit != nil || !l.removed.IsZero() {
		return a, false
	}
	code := fmt.Sprintf("code %d", e.Code)
	if !e.Measured {
		code = "a code that is not known yet"
	}
	a.Why = "Its record is being written."
	if l.unsettled != nil {
		a.at, a.Why = l.unsettled.at, quote(l.unsettled.err)
	}
	a.at = cmp.Or(e.Ended, a.at)
	a.What = fmt.Sprintf("%s (attempt %d) ended %s with %s, which is not on record yet.", a.Of, l.names.Attempt, ago(a.at, now), code)
	a.Now = "for CRI it is RUNNING until its end is on the disk, which berth tries every second"
	return a, true
}

// hindrance says what keeps a container from being made.
func (s *story) hindrance(l *life, now clock.Instant) (Answer, bool) {
	a := Answer{Of: l.name(), ID: l.id, weight: hindered}
	switch {
	case l.exit != nil || !l.running.IsZero() || !l.created.IsZero():
		return a, false
	case l.failure != nil:
		a.Cause, a.at = NotCreated, l.failure.at
		a.What = fmt.Sprintf("%s (attempt %d) could not be created, %s.", a.Of, l.names.Attempt, ago(a.at, now))
		a.Why = quote(l.failure.err)
		a.Before = s.failedBefore(l.names)
	case !l.silent.IsZero():
		a.Cause, a.at = VolumeSilent, l.silent
		a.What = a.Of + " is not created: its volume does not answer."
		a.Why = fmt.Sprintf("The file system below %s has not answered for %s; a server that it needs may be away.", l.path, span(a.at, now))
	default:
		return a, false
	}
	return a, true
}

// failedBefore says how often the creation of a container has failed.
func (s *story) failedBefore(n event.Names) string {
	if times := s.failures[n.Container]; times > 1 {
		return fmt.Sprintf("It has failed %d times.", times)
	}
	return ""
}

// ofPod explains what keeps the sandbox of a pod from being made, and its images from being pulled.
// Of a container only what is about it.
func (s *story) ofPod(container string, now clock.Instant) (answers []Answer) {
	if f := s.notMade; f != nil && !s.ready.After(f.at) {
		answers = append(answers, Answer{
			Of:     s.name,
			ID:     f.id,
			Cause:  PodNotMade,
			What:   fmt.Sprintf("The pod %s could not be made, %s.", s.name, ago(f.at, now)),
			Why:    quote(f.err),
			Before: times(s.notMadeTimes),
			Now:    "what was made for it is undone; the kubelet tries again",
			weight: hindered,
			at:     f.at,
		})
	}
	for what, f := range s.pulls {
		if container != "" && len(s.containers[container]) > 0 {
			continue // it has its image
		}
		answers = append(answers, Answer{
			Of:     s.name,
			ID:     f.id,
			Cause:  ImageNotPulled,
			What:   fmt.Sprintf("%s waits for the %s, which could not be pulled, %s.", s.name, what, ago(f.at, now)),
			Why:    quote(f.err),
			Before: times(f.times),
			Now:    "the kubelet tries again, with longer and longer waits",
			weight: hindered,
			at:     f.at,
		})
	}
	for name, f := range s.refused {
		if container != "" && container != name {
			continue
		}
		answers = append(answers, Answer{
			Of:     s.name + "/" + name,
			ID:     f.id,
			Cause:  ImageRefused,
			What:   fmt.Sprintf("%s/%s was not created, %s: the policy of the node does not let its image run.", s.name, name, ago(f.at, now)),
			Why:    quote(f.err),
			Before: times(f.times),
			Now:    "the kubelet tries again, with the same result until the image or the policy is another one",
			weight: hindered,
			at:     f.at,
		})
	}
	return answers
}

func times(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf("That has happened %d times.", n)
}

// end explains the end of a container.
func (s *story) end(l *life, now clock.Instant) Answer {
	e := *l.exit
	a := Answer{Of: l.name(), ID: l.id, at: e.Ended}
	code := fmt.Sprintf("code %d, %s", e.Code, e.Reason)
	if !e.Measured && e.Witness != exit.Start {
		code = "a code that nobody knows"
	}
	a.What = fmt.Sprintf("%s (attempt %d) ended %s with %s.", a.Of, l.names.Attempt, ago(e.Ended, now), code)
	a.Cause, a.Why, a.weight = s.cause(l, now)
	if (a.Cause == Signalled || a.Cause == Failed || a.Cause == Completed) && s.shutDownAround(e.Ended) {
		a.Why += " The machine was being shut down at that time, for which systemd ends processes."
	}
	if c, ok := s.crashes[l.id]; ok && a.weight == broken {
		a.Wrote = c.Last.Log
		if c.Last.Memory > 0 && e.OOM {
			a.Why += fmt.Sprintf(" It used %s at most.", mebibytes(c.Last.Memory))
		}
		if b := c.Last.Beside; e.Limit == exit.LimitPod && b.Memory > c.Last.Memory {
			a.Why += fmt.Sprintf(" Most of it was used by %s beside it, %s at most.", b.Container, mebibytes(b.Memory))
		}
		a.Before = "It is its first crash since it last ended well, as far as the history goes back."
		if c.Count > 1 {
			a.Before = fmt.Sprintf("It is its %s crash in a row. The first was %s, with code %d, %s.",
				ordinal(c.Count), ago(c.First.Ended, now), c.First.Code, c.First.Reason)
		}
	}
	if l.survived > 0 && !e.OOM {
		a.Why += fmt.Sprintf(" It had survived %d kills by the OOM killer before.", l.survived)
	}
	return a
}

// cause says why a container has ended.
func (s *story) cause(l *life, now clock.Instant) (Cause, string, weight) {
	e := *l.exit
	stop, stopped := l.lastStop()
	sig := exit.Fact{Code: e.Code, Measured: e.Measured}.Signal()
	switch {
	case e.Witness == exit.Start:
		return NotStarted, "Its program was not started. " + quote(cmp.Or(l.startFailed, e.Detail)), broken
	case e.OOM:
		return ofLimit[e.Limit], ofLimitText(e.Limit), broken
	case !e.Measured && l.rebootedAfter(s.reboots):
		return Rebooted, "The node was rebooted, or lost its power, while it ran. No exit code exists.", broken
	case !e.Measured:
		return Unmeasured, capital(cmp.Or(e.Detail, "neither the kernel nor the shim could say how it ended")) + ".", broken
	case stopped:
		return s.stop(l, stop, sig, now)
	case l.shimDied:
		return ShimKilled, "The shim of its pod had died, and what was left of the pod was killed. Somebody killed the shim, or it crashed; the kernel's log may say so.", broken
	case l.unread && (sig == int(unix.SIGPIPE) || sig == 0 && e.Code != 0):
		return LoggerKilled, "Nobody could read what it wrote: berth-logger, which keeps the output of a container while berth is away, was killed meanwhile, and many programs end when they cannot write. Somebody killed it, or the kernel did for want of memory; the kernel's log may say so.", broken
	case sig == int(unix.SIGSYS) && l.profile != "":
		return Signalled, "SIGSYS ended it: it made a system call for which its seccomp profile, or the base of that, ends a program. The profile is " + l.profile + ".", broken
	case sig != 0:
		return Signalled, fmt.Sprintf("%s ended it. berth did not send it and nobody asked for a stop: it came from within the pod, or from a process of the node.", signalName(sig)), broken
	case e.Code == 0:
		return Completed, "It ended by itself, and nobody had asked it to.", fine
	}
	return Failed, "It ended by itself, and nobody had asked it to.", broken
}

// stop explains an end that was asked for.
func (s *story) stop(l *life, stop stopAsked, sig int, now clock.Instant) (Cause, string, weight) {
	cause, who, what, hint := Stopped, "A client of CRI", "this container", ""
	switch by := stop.By; {
	case by.IsKubelet() && s.podStopped(l, stop):
		cause, who, what = PodStopped, "The kubelet", "the whole pod"
		hint = " It was deleted, replaced or evicted; CRI does not say which, the events of the cluster do."
	case by.IsKubelet():
		who, what = "The kubelet", "this container and kept its pod"
		hint = " A liveness or startup probe has failed, or the container is to be another one; CRI does not say which, the events of the pod do."
	case stop.Pod || s.podStopped(l, stop):
		cause, what = PodStopped, "the whole pod"
	}
	if !stop.By.IsKubelet() && !stop.By.IsZero() {
		cause, who = StoppedByClient, "Somebody, with "+stop.By.String()+","
	}
	why := fmt.Sprintf("%s stopped %s %s.%s", who, what, ago(stop.at, now), hint)
	if stop.Shutdown {
		cause, why = ShutDown, fmt.Sprintf("The machine was shut down %s, and this container was stopped before.", ago(stop.at, now))
	}
	took := l.exit.Ended.Sub(stop.at)
	if sig == int(unix.SIGKILL) && stop.Timeout > 0 && took >= stop.Timeout {
		why += fmt.Sprintf(" It did not end within its %s, and was killed.", stop.Timeout)
	}
	if l.cutOff {
		why += " The call was cut off, and berth went on with the stop."
	}
	return cause, why, ended
}

var ofLimit = map[exit.Limit]Cause{
	exit.LimitUnknown:   OOM,
	exit.LimitContainer: OOMOfContainer,
	exit.LimitPod:       OOMOfPod,
	exit.LimitAbove:     OOMAbove,
	exit.LimitNode:      OOMOfNode,
}

func ofLimitText(l exit.Limit) string {
	if l == exit.LimitUnknown {
		return "The kernel's OOM killer ended it. Which limit was reached is not known."
	}
	return "The kernel's OOM killer ended it: " + l.String() + "."
}

// signalName returns a signal as people know it, such as SIGSEGV.
func signalName(sig int) string {
	return cmp.Or(unix.SignalName(unix.Signal(sig)), fmt.Sprintf("Signal %d", sig))
}

// quote returns the text of an error as a sentence.
func quote(err string) string {
	if err == "" {
		return ""
	}
	return "The error is: " + strings.TrimSuffix(err, ".") + "."
}

func capital(s string) string {
	s = strings.TrimSuffix(s, ".")
	return strings.ToUpper(s[:1]) + s[1:]
}

func mebibytes(n uint64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func ordinal(n int) string {
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		return fmt.Sprintf("%dst", n)
	case n%10 == 2:
		return fmt.Sprintf("%dnd", n)
	case n%10 == 3:
		return fmt.Sprintf("%drd", n)
	}
	return fmt.Sprintf("%dth", n)
}

// ago says how long before now an instant was.
func ago(at, now clock.Instant) string {
	if now.Sub(at) < time.Second {
		return "just now"
	}
	return span(at, now) + " ago"
}

// span says how long it is from an instant until now.
func span(at, now clock.Instant) string {
	d := now.Sub(at)
	switch {
	case d < time.Second:
		return "less than a second"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
