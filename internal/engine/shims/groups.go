// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"cmp"
	"crypto/rand"
	"strings"

	"berth/internal/host/pidfd"
)

// groups are the groups of pods that share a shim, and the group of each pod that has one. The
// records of the pods have the same; this is the copy in memory.
type groups struct {
	of  map[string]string // the group of a pod
	all map[string]*group
}

// group is a number of pods that have one shim.
type group struct {
	kind string // only pods of the same kind join: of one handler, with the same settings
	// pods are the pods of the group. One that has left has no place in the shim any more, and its
	// objects are still to be deleted.
	pods map[string]membership
	// made is set if the group was made by this process, and its shim may still have to be started.
	// The shim of a group of the records is known, or the group takes no pod.
	made bool
	// closed is set if no pod may join: the shim has not answered or has ended, or its program was
	// replaced.
	closed bool
	// over is set if the last pod has left and the shim has ended. The rest of the pods have
	// objects to be deleted, and no shim.
	over bool
}

type membership string

const (
	stays  membership = "stays"
	leaves membership = "leaves"
)

// staying counts the pods that have a place in the shim.
func (g *group) staying() (n int, one string) {
	for pod, m := range g.pods {
		if m == stays && (one == "" || pod < one) {
			one = pod
		}
		if m == stays {
			n++
		}
	}
	return n, one
}

// key returns the ID under which the shim of a pod is known, which is also in the shim's arguments:
// the pod's group, or the pod itself. s.mu must be held.
func (s *Shims) key(pod string) string { return cmp.Or(s.groups.of[pod], pod) }

// Key is the group of a pod, or its own ID where it has a shim to itself. Pods of the same key have
// the same shim.
func (s *Shims) Key(pod string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key(pod)
}

// Join puts a pod into a group of its kind with fewer than most pods, or into a new one. The caller
// records the group with the pod before anything is made of the pod, and calls Leave if that fails.
// other is a pod whose place in the shim shows whether the shim answers; "" if the group is new.
//
// A group whose shim has ended, or whose program was replaced by a newer one, takes no pod any
// more; neither does one whose shim is not known, nor one without a remaining pod, because its shim
// is about to end.
func (s *Shims) Join(pod, kind string, most int) (id, other string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best string
	most, fullest := max(most, 1), 0
	for id, g := range s.groups.all {
		n, one := g.staying()
		if g.kind != kind || g.closed || n == 0 || n >= most || !s.takes(id, g) {
			continue
		}
		if n > fullest || n == fullest && id < best {
			best, fullest, other = id, n, one
		}
	}
	if best == "" {
		best = newGroup()
		s.groups.add(best, &group{kind: kind, pods: map[string]membership{}, made: true})
	}
	s.groups.put(best, pod)
	if s.groups.all[best].made {
		other = "" // it may not have a shim yet
	}
	return best, other
}

// takes reports whether the shim of a group can take one more pod, and closes the group if it never
// will. s.mu must be held.
func (s *Shims) takes(id string, g *group) bool {
	p, known := s.of[id]
	switch {
	case !known:
		return g.made
	case pidfd.Ask(p.fd) == pidfd.Gone:
		g.closed = true
	default:
		path, replaced := programOf(p)
		g.closed = path == "" || replaced
	}
	return !g.closed
}

// Rejoin notes the group that is on record for a pod, when an earlier berth chose it.
func (s *Shims) Rejoin(pod, id, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups.all[id] == nil {
		s.groups.add(id, &group{kind: kind, pods: map[string]membership{}})
	}
	s.groups.put(id, pod)
}

// Leave notes that a pod has no place in its group's shim any more. End forgets its group.
func (s *Shims) Leave(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups.all[s.groups.of[pod]]; g != nil {
		g.pods[pod] = leaves
	}
}

// Stay takes Leave back: the pod is about to have a place in the shim of its group again, in the
// one that is there or in the next. It is called before anything may give the pod that place, so
// that no other pod of the group takes itself for the last one.
func (s *Shims) Stay(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups.all[s.groups.of[pod]]; g != nil {
		g.pods[pod] = stays
		g.over = false
	}
}

// Close keeps pods from joining a group.
func (s *Shims) Close(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.groups.all[id]; g != nil {
		g.closed = true
	}
}

// Grouped reports whether any pod is in a group.
func (s *Shims) Grouped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.groups.of) > 0
}

// Is reports whether a process is the shim of a pod.
func (s *Shims) Is(pod string, pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.of[s.key(pod)]
	return ok && p.pid == pid && pidfd.Ask(p.fd) == pidfd.Alive
}

// Shared reports whether the shim of a pod serves another one that stays.
func (s *Shims) Shared(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shared(pod)
}

func (s *Shims) shared(pod string) bool {
	g := s.groups.all[s.groups.of[pod]]
	if g == nil {
		return false
	}
	n, _ := g.staying()
	if g.pods[pod] == stays {
		n--
	}
	return n > 0
}

// Drop forgets that a pod is in a group.
func (s *Shims) Drop(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups.drop(pod)
}

func (gs *groups) add(id string, g *group) {
	if gs.all == nil {
		gs.all, gs.of = map[string]*group{}, map[string]string{}
	}
	gs.all[id] = g
}

func (gs *groups) put(id, pod string) {
	gs.of[pod] = id
	gs.all[id].pods[pod] = stays
}

func (gs *groups) drop(pod string) {
	id := gs.of[pod]
	delete(gs.of, pod)
	if g := gs.all[id]; g != nil {
		delete(g.pods, pod)
		if len(g.pods) == 0 {
			delete(gs.all, id)
		}
	}
}

// groupPrefix begins the IDs of groups, which no ID of a pod has.
const groupPrefix = "group-"

// newGroup returns an ID that no group has had.
func newGroup() string { return groupPrefix + strings.ToLower(rand.Text()) }
