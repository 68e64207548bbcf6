// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/history/recorder"
	"berth/internal/history/why"
	"berth/test/world"
)

// attempt is the attempt of the next sandbox or container of a name, and again sets it: there is
// another one of that name from then on.
func (s *Story) attempt(name string) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts[name]
}

func (s *Story) again(name string, attempt uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attempts[name] != attempt {
		delete(s.ids, name)
	}
	s.attempts[name] = attempt
}

// reboot reboots the machine. What the clock shows goes on.
func (s *Story) reboot() error {
	err := s.Kill()
	s.World.StopContainerd()
	s.World.Reboot()
	time.Sleep(10 * time.Second)
	s.World.StartContainerd()
	return err
}

// lookAtTimes checks what CRI shows of times: the creations of a pod, and of the containers of one
// name in it, rise with the attempts; created, started and ended follow each other, and are not
// later than now; a list has what a status has.
func (s *Story) lookAtTimes(ctx context.Context, b *Berth) error {
	type made struct {
		attempt uint32
		at      int64
	}
	of := map[string][]made{}
	add := func(key string, attempt uint32, at int64) {
		for _, m := range of[key] {
			if (m.attempt < attempt) != (m.at < at) && m.attempt != attempt {
				s.Watch.Problem("attempt %d of %s was created at %s, and attempt %d at %s", m.attempt, key, wall(m.at), attempt, wall(at))
			}
		}
		of[key] = append(of[key], made{attempt, at})
	}
	pods, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	uid := map[string]string{}
	for _, p := range pods.GetItems() {
		uid[p.GetId()] = p.GetMetadata().GetUid()
		add(uid[p.GetId()], p.GetMetadata().GetAttempt(), p.GetCreatedAt())
	}
	list, err := b.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	for _, c := range list.GetContainers() {
		add(uid[c.GetPodSandboxId()]+"/"+c.GetMetadata().GetName(), c.GetMetadata().GetAttempt(), c.GetCreatedAt())
		resp, err := b.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		// Of what is made at one moment of virtual time, the second is nanoseconds later.
		st, last := resp.GetStatus(), int64(1)
		for _, at := range []int64{st.GetCreatedAt(), st.GetStartedAt(), st.GetFinishedAt(), s.World.Wall(time.Now().Add(time.Microsecond)).UnixNano()} { // instants of one moment differ by nanoseconds
			if at != 0 && at < last {
				s.Watch.Problem("%s was created at %s, started at %s, and ended at %s, and it is %s", world.Short(c.GetId()),
					wall(st.GetCreatedAt()), wall(st.GetStartedAt()), wall(st.GetFinishedAt()), s.World.Wall(time.Now()))
			}
			last = max(last, at)
		}
		if st.GetCreatedAt() != c.GetCreatedAt() {
			s.Watch.Problem("%s was created at %s, and in the list at %s", world.Short(c.GetId()), wall(st.GetCreatedAt()), wall(c.GetCreatedAt()))
		}
	}
	return nil
}

func wall(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// expectLasted compares how long a container has run, by its status, with want.
func (s *Story) expectLasted(st *runtimeapi.ContainerStatus, want time.Duration) error {
	end := st.GetFinishedAt()
	if end == 0 {
		end = s.World.Wall(time.Now()).UnixNano()
	}
	if lasted := time.Duration(end - st.GetStartedAt()); (lasted - want).Abs() > 100*time.Millisecond {
		return fmt.Errorf("it ran for %s", lasted)
	}
	return nil
}

// found returns the history of a name, with what is around it.
func (s *Story) found(name string, around bool) (recorder.Answer, *Berth, error) {
	b := s.Berth()
	if b == nil {
		return recorder.Answer{}, nil, errNoBerth
	}
	a, err := b.Core.Recorder.Find(s.ctx, recorder.Query{Of: s.ID(name), Around: around})
	return a, b, err
}

// expectWhy looks for a text in the answer to why.
func (s *Story) expectWhy(st statement) error {
	time.Sleep(time.Millisecond)
	found, b, err := s.found(st.word(0), true)
	if err != nil {
		return err
	}
	a := why.Explain(found, b.Core.Pods.Ended(), b.life.Clock.Now(), nil, time.Now())
	if all, want := a.What+" "+a.Why+" "+a.Now, strings.Join(st.words[1:], " "); !strings.Contains(all, want) {
		return fmt.Errorf("the answer is: %s", all)
	}
	return nil
}

// expectTimeline checks that the timeline of a container is in the order of what happened.
func (s *Story) expectTimeline(name string) error {
	time.Sleep(time.Millisecond)
	found, _, err := s.found(name, false)
	if err != nil {
		return err
	}
	at := map[string]int{}
	for n, e := range found.Entries {
		if _, ok := at[e.Kind]; !ok {
			at[e.Kind] = n
		}
	}
	for _, then := range [][2]string{
		{"ContainerCreated", "ContainerRunning"}, {"ContainerRunning", "StopRequested"}, {"ContainerRunning", "ExitSettled"},
		{"StopRequested", "ExitSettled"}, {"ExitSettled", "Released"},
	} {
		first, ok := at[then[0]]
		if second, both := at[then[1]]; ok && both && second < first {
			err = errors.Join(err, fmt.Errorf("%s is before %s", then[1], then[0]))
		}
	}
	if len(found.Entries) == 0 {
		err = errors.New("there is nothing")
	}
	return err
}
