// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/world"
)

// bound is how long a call may take in a world in which nothing is broken any more, beside the
// grace that the call itself gives a process. A call that was made before has as long from the
// instant at which everything was mended.
//
// A retry goes on within a second of that instant, because a caller waits for it (PROPERTIES 35). A
// settle asks for a code for a second and a half (MeasureTimeout), and for the log a quarter of a
// second; a start in flight has two seconds before a stop interrupts it (StartGrace). A release
// lets settles go first for a second at most (lane.Pacer).
type bound struct {
	call string
	most time.Duration
}

var (
	answers = bound{"a question", 50 * time.Millisecond} // from memory
	makes   = bound{"a creation or a start", 3 * time.Second}
	changes = bound{"an update", 3 * time.Second}
	stops   = bound{"a stop", 4 * time.Second}
	removes = bound{"a removal", 6 * time.Second}
)

// healed notes that nothing is broken from now on.
func (s *Story) healed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.healedAt = time.Now()
}

// returned checks that a call to b which was made at an instant, and gives a process a grace, has
// come back within its bound. The calls to a berth that was killed are over for their client.
func (s *Story) returned(b *Berth, most bound, began time.Time, grace time.Duration, err error) {
	s.mu.Lock()
	from := s.healedAt
	s.mu.Unlock()
	if from.IsZero() || b.Dead() {
		return
	}
	if own := began.Add(grace); own.After(from) {
		from = own
	}
	if took := time.Since(from); took > most.most {
		s.Watch.Problem("%s took %s where nothing was broken, and may take %s: %v", most.call, took, most.most, err)
	}
}

// endAtOnce asks for everything at the instant at which nothing is broken any more: every pod is
// removed, in one of several ways, and a new one is made, used and removed beside that.
func (s *Story) endAtOnce() {
	r := rand.New(rand.NewPCG(s.seed, 3))
	pods, err := s.pods()
	if err != nil {
		s.Watch.Problem("the pods cannot be listed: %v", err)
		return
	}
	on := s.handlerFor(r)
	s.wg.Go(func() { s.must("a new pod", s.newPod(on)) })
	for _, id := range pods {
		way := r.IntN(4)
		s.wg.Go(func() { s.must("the end of pod "+world.Short(id), s.endPod(id, way)) })
	}
}

// must notes a call that fails although nothing is broken.
func (s *Story) must(what string, err error) {
	if err != nil {
		s.Watch.Problem("%s, where nothing was broken: %v", what, err)
	}
}

// newPod makes a pod with a container that runs, and removes it.
func (s *Story) newPod(handler string) error {
	for _, step := range []func() error{
		func() error { return s.RunPod("p9", handler) },
		func() error { return s.Create("p9/c9") },
		func() error { return s.Start("p9/c9") },
		func() error { return s.StopUnit("p9/c9", time.Second) },
		func() error { return s.Remove("p9/c9") },
		func() error { return s.Remove("p9") },
	} {
		s.turn()
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// endPod removes a pod in one of four ways: as a whole, after a stop, after stops of its
// containers, or while its containers are started that have not run yet.
func (s *Story) endPod(id string, way int) error {
	s.turn()
	switch way {
	case 1:
		if err := s.stopPod(id); err != nil {
			return err
		}
	case 2, 3:
		list, err := s.containersOf(id)
		if err != nil {
			return err
		}
		for _, c := range list {
			if way == 3 && c.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
				s.wg.Go(func() { s.turn(); _ = s.startContainer(c.GetId()) }) // it may come too late
				continue
			}
			s.wg.Go(func() {
				s.turn()
				s.must("a stop of container "+world.Short(c.GetId()), s.stopContainer(c.GetId(), time.Duration(3-way)*time.Second))
			})
		}
		s.turn()
		if err := s.stopPod(id); err != nil {
			return err
		}
	}
	s.turn()
	return s.removePod(id)
}

// pods lists the IDs of all pods.
func (s *Story) pods() (ids []string, err error) {
	err = s.call(answers, 0, func(ctx context.Context, b *Berth) error {
		list, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		for _, p := range list.GetItems() {
			ids = append(ids, p.GetId())
		}
		slices.Sort(ids)
		return err
	})
	return ids, err
}

func (s *Story) containersOf(pod string) (all []*runtimeapi.Container, err error) {
	err = s.call(answers, 0, func(ctx context.Context, b *Berth) error {
		list, err := b.ListContainers(ctx, &runtimeapi.ListContainersRequest{
			Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod},
		})
		all = list.GetContainers()
		slices.SortFunc(all, func(x, y *runtimeapi.Container) int { return strings.Compare(x.GetId(), y.GetId()) })
		return err
	})
	return all, err
}

// handlerFor chooses a runtime handler. Nothing is restored in a virtual machine.
func (s *Story) handlerFor(r *rand.Rand) string {
	if on := handler(r); on != "vm" || !s.Restored {
		return on
	}
	return world.Pinned
}
