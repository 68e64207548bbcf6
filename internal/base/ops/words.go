// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/base/event"
)

// Sentences returns the operations in sentences, one for each that is not a part of another, the
// oldest first. The object that they are about is "it" there; the zero Object: each is named.
func Sentences(list []Operation, about Object, now time.Time) []string {
	return slices.DeleteFunc(Say(list, about, now), func(s string) bool { return s == "" })
}

// Say returns the sentence of each operation of a list; "" of one that is a part of another.
func Say(list []Operation, about Object, now time.Time) []string {
	listed, of := map[uint64]bool{}, map[uint64][]Operation{}
	for _, o := range list {
		listed[o.Number] = true
		if o.PartOf != 0 {
			of[o.PartOf] = append(of[o.PartOf], o)
		}
	}
	said := make([]string, len(list))
	for i, o := range list {
		if o.PartOf == 0 || !listed[o.PartOf] {
			said[i] = sentence(o, parts(of, o), about, now)
		}
	}
	return said
}

// parts returns the parts of an operation, and theirs, the oldest first.
func parts(of map[uint64][]Operation, o Operation) (found []Operation) {
	if o.Number == 0 {
		return nil
	}
	for _, p := range of[o.Number] {
		if o.Kind != Signal || p.Kind != Wait { // the signal says it
			found = append(append(found, p), parts(of, p)...)
		}
	}
	return found
}

// leaves returns those of the parts that have no parts themselves.
func leaves(parts []Operation) []Operation {
	return slices.DeleteFunc(slices.Clone(parts), func(o Operation) bool {
		return slices.ContainsFunc(parts, func(p Operation) bool { return p.PartOf == o.Number })
	})
}

// sentence returns an operation with its parts in words: the action, the thing that it waits for
// and since when, the client that asked for it, and the next action.
func sentence(root Operation, parts []Operation, about Object, now time.Time) string {
	var s strings.Builder
	subject := root.Of.name()
	switch {
	case root.Of.is(about):
		subject = "It"
	case root.Of == Object{}:
		subject = "The node"
	}
	fmt.Fprintf(&s, "%s %s", subject, root.verb())
	var waits []string
	for _, p := range leaves(parts) {
		if p.Kind == root.Kind && p.What == root.What {
			continue // the work of the call itself
		}
		if w := p.waits(now); !slices.Contains(waits, w) {
			waits = append(waits, w)
		}
	}
	if len(waits) > 0 {
		s.WriteString(": " + strings.Join(waits, ", and "))
	} else {
		s.WriteString(", for " + span(now.Sub(root.Since)))
	}
	if by := root.By.String(); by != "" {
		s.WriteString(", asked for by " + by)
	}
	if root.Err != "" {
		fmt.Fprintf(&s, "; attempt %d has failed: %s", root.Tries, strings.TrimSuffix(root.Err, "."))
	}
	if next := soonest(root, parts).next(now); next != "" {
		s.WriteString("; " + next)
	}
	return s.String() + "."
}

// soonest returns the one of an operation and its parts that is given up first. A part has the
// deadline of its operation, which names the action at that instant. Work that outlives its call
// has a deadline of its own, which counts.
func soonest(root Operation, parts []Operation) Operation {
	first := root
	for _, p := range parts {
		if p.Kind == root.Kind && p.Until.After(root.Until) {
			first = p
		}
	}
	for _, p := range parts {
		d := p.Until.Sub(first.Until)
		if !p.Until.IsZero() && (first.Until.IsZero() || d < -time.Millisecond || d < time.Millisecond && p.Then != "") {
			first = p
		}
	}
	return first
}

// verb returns the action on the object.
func (o Operation) verb() string {
	switch o.Kind {
	case Run:
		return "is being made"
	case Create:
		return "is being created"
	case Start:
		return "is being started"
	case Stop:
		return "is being stopped"
	case Remove, RemoveImage:
		return "is being removed"
	case Update:
		return "is being updated"
	case Checkpoint:
		return "is being checkpointed"
	case Pull:
		if o.What == "PullSecurityProfile" && o.Of.Names.Pod != "" {
			return "waits for the seccomp profile " + o.Of.Image + ", which is being pulled"
		}
		if o.Of.Names.Pod != "" {
			return "waits for the image " + o.Of.Image + ", which is being pulled"
		}
		return "is being pulled"
	case Import:
		return "is being imported"
	case Exec:
		return "runs the command " + cmp.Or(o.What, "of an exec")
	case Attach:
		return "has a terminal attached"
	case Forward:
		return "forwards a port"
	case Step:
		if o.waiting() {
			return "waits for the next attempt of the step " + o.What
		}
		return "goes through the step " + o.What
	case Call, Read:
		return "is in " + o.What
	}
	return "waits for " + o.What
}

// waiting reports whether a step waits for its next attempt.
func (o Operation) waiting() bool { return o.Kind == Step && o.Number == 0 }

// waits returns a part in words: the thing that it waits for, and since when.
func (o Operation) waits(now time.Time) string {
	since := span(now.Sub(o.Since))
	switch o.Kind {
	case Signal:
		return o.What + " " + since + " ago"
	case Plugin, Containerd, Shim, Registry, Disk:
		return fmt.Sprintf("%s has not answered for %s", o.What, since)
	case Wait:
		return fmt.Sprintf("it waits for %s, for %s", o.What, since)
	}
	return fmt.Sprintf("%s %s, for %s", cmp.Or(o.Of.name(), "it"), o.verb(), since)
}

// next returns the next action, and its instant.
func (o Operation) next(now time.Time) string {
	then := o.Then
	switch {
	case then != "":
	case o.waiting():
		then = "the next attempt"
	default:
		then = "it is given up"
	}
	switch left := o.Until.Sub(now); {
	case o.Until.IsZero() && o.Then != "":
		return "then " + then
	case o.Until.IsZero():
		return "" // there is no bound, and nothing that comes by itself
	case left <= 0:
		return then + " now"
	default:
		return then + " in " + span(left)
	}
}

// phrase names the operation that took long, for an event.
func (o Operation) phrase() string {
	if o.Kind == Wait {
		return "the wait for " + o.What
	}
	return o.What
}

// name returns the name of an object for a person.
func (o Object) name() string {
	switch {
	case o.Names.Pod != "":
		return o.Names.Namespace + "/" + o.Names.Name()
	case o.ID != "":
		return o.ID[:min(len(o.ID), 13)]
	}
	return cmp.Or(o.Image, "the node")
}

// is reports whether both are the same object, as far as they are known.
func (o Object) is(of Object) bool {
	if o.ID != "" && of.ID != "" {
		return strings.HasPrefix(of.ID, o.ID)
	}
	return o.Names.Pod != "" && o.name() == of.name()
}

// Named returns the object that a person means by a word: an ID or the beginning of one, a pod as
// NAME or NAMESPACE/NAME, a container as NAME or POD/NAME. false: nothing in the list concerns such
// an object.
func Named(list []Operation, word string) (Object, bool) {
	for _, o := range list {
		n := o.Of.Names
		pod := Object{ID: n.Sandbox, Names: event.Names{Namespace: n.Namespace, Pod: n.Pod, UID: n.UID}}
		if n.Container == "" {
			pod = o.Of
		}
		switch {
		case word == "" || n.Pod == "" && o.Of.ID == "":
		case o.Of.ID != "" && strings.HasPrefix(o.Of.ID, word):
			return o.Of, true
		case word == n.Pod, word == n.Namespace+"/"+n.Pod:
			return pod, true
		case n.Container != "" && slices.Contains([]string{n.Container, n.Name(), n.Namespace + "/" + n.Name()}, word):
			return o.Of, true
		}
	}
	return Object{}, false
}

// concerns reports whether o is an object, or a container of the pod.
func (o Object) concerns(of Object) bool {
	if o.ID != "" && of.ID != "" && (strings.HasPrefix(of.ID, o.ID) || o.Names.Sandbox == of.ID) {
		return true
	}
	x, y := o.Names, of.Names
	if x.Pod == "" || x.Namespace != y.Namespace || x.Pod != y.Pod {
		return false
	}
	return y.Container == "" || x.Container == y.Container
}

// span returns a duration in words, such as 3 s or 3 min 57 s.
func span(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	switch m := s / 60; {
	case d < 0:
		return "0 s"
	case d < 500*time.Millisecond:
		return "less than a second"
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case m < 10 && s%60 != 0:
		return fmt.Sprintf("%d min %d s", m, s%60)
	case m < 120:
		return fmt.Sprintf("%d min", m)
	case m < 48*60:
		return fmt.Sprintf("%d h", m/60)
	default:
		return fmt.Sprintf("%d d", m/60/24)
	}
}
