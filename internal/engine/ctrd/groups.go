// SPDX-License-Identifier: Apache-2.0

package ctrd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/base/connection"
	"berth/internal/base/retry"
	"berth/internal/heart/pod"
)

const (
	// socketAnnotation names, in the specification of a sandbox, the group after which its shared
	// socket is named. It differs from the group, which is the ID of the shim: see
	// tools/programs/shim.
	socketAnnotation = "io.containerd.runc.v2.group"
	// groupTimeout is how long the shim of a group may take to answer when a pod is to join it.
	groupTimeout = 500 * time.Millisecond
	// groupTurnTimeout is how long a pod waits for its turn: one after another comes to the shim, and
	// on a busy node thirty do at once.
	groupTurnTimeout = 30 * time.Second
	// groupJoinTimeout is how long a pod may take to come to the shim of its group, which has just
	// answered: one that is out of descriptors answers, and takes no new connection. It begins with
	// the pod's turn.
	groupJoinTimeout = 5 * time.Second
	// groupStartTimeout is how long it may take if the shim is started for it.
	groupStartTimeout = 20 * time.Second
)

// JoinGroup implements [pod.Shims]. A group whose shim does not answer, or has died, takes no pod
// any more. If no script can clean up after a dead shim, the death of one ends its containers, so
// that no shim is shared.
func (p *PodShims) JoinGroup(ctx context.Context, id string, h pod.Handler) string {
	if can, _ := p.grouping.Load(h.Name); h.ShimPods < 2 || can != true || !p.cleanups.CanSpare(ctx, h.Root) {
		return ""
	}
	for {
		group, other := p.shims.Join(id, kindOf(h), h.ShimPods)
		if other == "" || p.answers(ctx, other, groupTimeout) {
			return group
		}
		p.log.Warn("shared shim does not answer: no other pod joins it", "group", group, "pod", other)
		p.shims.Close(group)
		p.shims.Drop(id)
	}
}

// kindOf returns a key that is equal for handlers whose pods may share a shim.
func kindOf(h pod.Handler) string { return h.Name + " " + h.Type + " " + h.Root }

// sparing returns the program by which containerd is to clean up after containers in a pod of a
// group, and which leaves them alone; "" if there is none now. Containers made meanwhile are ended
// with the shim, so no other pod may join it.
func (p *PodShims) sparing(ctx context.Context, id string, h pod.Handler) string {
	p.cleanups.LearnHandler(ctx, id, h.Type, h.Root)
	program := p.cleanups.HandlerProgram(id, h.Type, h.Root)
	if program == "" { // this shim's own program is gone, so that no other one can be started by it
		program = p.cleanups.For(ctx, id, h.Root)
	}
	if program == "" {
		group := p.shims.Key(id)
		p.log.Warn("clean-up program that spares the containers of a dead shim not available: no other pod joins its group", "group", group, "pod", id)
		p.shims.Close(group)
	}
	return program
}

// Hangs implements [pod.Shims]. It asks nothing about a container, because one whose OCI runtime is
// slow keeps its shim from no other answer.
func (p *PodShims) Hangs(ctx context.Context, id string) bool {
	return p.shims.Key(id) != id && !p.shims.HasEnded(id) && !p.answers(ctx, id, taskTimeout)
}

// answers reports whether the shim of a pod answers in time. One that is known to hang is not
// asked, and does not. If the question is impossible for another reason, such as the absence of
// containerd, that proves nothing about the shim: the next step will fail with it.
func (p *PodShims) answers(ctx context.Context, id string, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(connection.Namespaced(context.WithoutCancel(ctx)), most)
	defer cancel()
	_, err := askShim(ctx, p.asker, id, func(ctx context.Context) (struct{}, error) {
		_, err := sandboxer{p, shimController}.controller().Status(ctx, id, false)
		return struct{}{}, err
	})
	if _, known := errors.AsType[hangs](err); known {
		return false
	}
	err = connection.Native(err)
	return err == nil || !isLate(ctx, err) && !says(err, hungUp, id)
}

// isLate reports whether an error means that ctx has ended. The other side of a call has the same
// deadline, and may report its passing a moment before ctx ends here.
func isLate(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errdefs.IsDeadlineExceeded(err)
}

// RejoinGroup implements [pod.Shims].
func (p *PodShims) RejoinGroup(id, group string, h pod.Handler, stays bool) {
	p.shims.Rejoin(id, group, kindOf(h))
	if !stays {
		p.shims.Leave(id)
	}
}

// LeaveGroup implements [pod.Shims].
func (p *PodShims) LeaveGroup(id string) { p.shims.Drop(id) }

// toShim returns the specification of a sandbox, with what berth's own shim is told by it: the
// group that shares the shim, and the OCI runtime in whose place it may start containers.
func (p *PodShims) toShim(r pod.SandboxRequest) *specs.Spec {
	told := *r.Spec
	told.Annotations = maps.Clone(told.Annotations)
	if told.Annotations == nil {
		told.Annotations = map[string]string{}
	}
	if r.Group != "" {
		told.Annotations[shimGroupCapability] = r.Group
		told.Annotations[socketAnnotation] = r.Group + ".socket"
	}
	if program := p.shimStarts(r.Handler.Name); program != "" {
		told.Annotations[shimStartAnnotation] = program
	}
	return &told
}

// missed reports whether a pod came to the shim of its group when that was about to end, and that
// it is worth another try, which starts the next shim.
func (s sandboxer) missed(ctx context.Context, r pod.SandboxRequest, why error) bool {
	ended := errdefs.IsUnavailable(why) || says(why, hungUp, r.ID) || says(why, noSocket, r.ID) || says(why, socketLeft, r.ID)
	return r.Group != "" && ended && retry.Sleep(ctx.Done(), forgetInterval)
}

// starts lets one pod of a group at a time come to the shim of the group. Two that find none would
// start one each.
type starts struct {
	mu sync.Mutex
	of map[string]*start
}

type start struct {
	turn chan struct{} // of one
	n    int           // starts that wait or are in progress
	late bool          // the shim has not answered one of them
}

// late notes that the shim of a group has not answered the pod whose turn it is. The pods that wait
// for theirs would wait for it one after another.
func (s *starts) late(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.of[group]; st != nil {
		st.late = true
	}
}

// enter waits for the turn of a pod of the group, and returns the function that ends it.
func (s *starts) enter(ctx context.Context, group string) (done func(), err error) {
	s.mu.Lock()
	if s.of == nil {
		s.of = map[string]*start{}
	}
	st := s.of[group]
	if st == nil {
		st = &start{turn: make(chan struct{}, 1)}
		s.of[group] = st
	}
	st.n++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if st.n--; st.n == 0 {
			delete(s.of, group)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, groupTurnTimeout)
	defer cancel()
	select {
	case st.turn <- struct{}{}:
		done = func() { <-st.turn; leave() }
		s.mu.Lock()
		late := st.late
		s.mu.Unlock()
		if late {
			done()
			return nil, fmt.Errorf("it has not answered the pod before: %w", errdefs.ErrUnavailable)
		}
		return done, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for a turn: %w", errors.Join(ctx.Err(), errdefs.ErrUnavailable))
	}
}
