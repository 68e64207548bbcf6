// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pleg does with an event what the kubelet's evented PLEG does with its cache, which is kept by the
// pod's UID: a DELETED of the sandbox itself drops the pod, whatever the event's stamp; any other
// event replaces the pod's status unless that is newer; an event without a pod status is ignored.
type pleg map[string]cached

type cached struct {
	sandbox string
	stamp   int64
}

func (p pleg) observe(events ...*event) {
	for _, ev := range events {
		uid := ev.GetPodSandboxStatus().GetMetadata().GetUid()
		switch {
		case uid == "":
		case ev.ContainerEventType == deleted:
			if ev.ContainerId == ev.PodSandboxStatus.Id {
				delete(p, uid)
			}
		case p[uid].stamp <= ev.CreatedAt:
			p[uid] = cached{ev.PodSandboxStatus.Id, ev.CreatedAt}
		}
	}
}

// PROPERTIES 8: the kubelet recreates the sandbox of a pod that runs, and removes the first one.
// When its stream breaks later, the first one's DELETED must not be sent again: the kubelet would
// forget the pod, and then kill it.
func TestAReplayDoesNotMakeTheKubeletForgetAPodThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{Queue: 4})
		send := func(sandbox, id string, what runtimeapi.ContainerEventType) {
			f.Publish(&event{
				ContainerId:        id,
				ContainerEventType: what,
				CreatedAt:          f.Stamp(sandbox, time.Now()),
				PodSandboxStatus: &runtimeapi.PodSandboxStatus{
					Id:       sandbox,
					Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u"},
				},
			})
		}
		kubelet := pleg{}
		s := f.Subscribe()
		for _, what := range life[:3] {
			send("first", "first", what)
			send("first", "c1", what)
		}
		for _, what := range life[:2] {
			send("second", "second", what)
			send("second", "c2", what)
		}
		kubelet.observe(drain(t, s)...)
		send("first", "c1", deleted)
		send("first", "first", deleted)
		kubelet.observe(drain(t, s)...)
		kubelet["u"] = cached{"second", f.Instant(time.Now())} // its relist
		s.Close()

		time.Sleep(time.Second)
		for range 3 {
			s = f.Subscribe()
			again := drain(t, s)
			kubelet.observe(again...)
			if got := kubelet["u"]; got.sandbox != "second" {
				t.Fatalf("the kubelet knows %q of a pod that runs, after %v", got.sandbox, names(again))
			}
			equal(t, again, "second:S", "c2:S")
			s.Close()
		}
	})
}

// PROPERTIES 8: a DELETED reaches only those who were subscribed when it was published, also when
// it is coalesced with events that are sent again.
func TestADeletionIsNotReplayed(t *testing.T) {
	f := New(Config{Queue: 2, Backlog: 10})
	publish(f, "p", "a", stopped) // nobody is subscribed
	publish(f, "p", "b", stopped)
	publish(f, "p", "a", deleted)
	s := f.Subscribe()
	equal(t, drain(t, s), "b:X")
	publish(f, "p", "c", created)
	publish(f, "p", "d", created)
	publish(f, "p", "e", created) // one too many: the queue collapses
	publish(f, "p", "c", deleted)
	equal(t, drain(t, s), "d:C", "e:C", "c:D")
	equal(t, drain(t, f.Subscribe()), "b:X", "d:C", "e:C")
	behind := f.Subscribe() // b, d and e are sent again to it
	publish(f, "p", "b", deleted)
	equal(t, drain(t, behind), "d:C", "e:C", "b:D")
	equal(t, drain(t, f.Subscribe()), "d:C", "e:C")
	if st := f.Stats(); st.Dropped != 0 || st.Backlog != 2 {
		t.Errorf("%+v", st)
	}
}
