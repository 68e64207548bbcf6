// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// named is a node on which the name of the image changes.
type named struct {
	pod.Images
	name atomic.Value
}

func (n *named) Name(string, string) string { return n.name.Load().(string) }

// A container's image is reported by the name that it has now, whatever the kubelet asked by, which
// is an ID. Pods showed sha256:..., and who waited for a changed image waited for ever.
func TestTheImageOfAContainerIsReportedByItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images := &named{}
		images.name.Store("docker.io/library/app:1")
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { images.Images, p.Images = p.Images, images })
		cfg := ctr("c1")
		cfg.Image = &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "app:1"}
		p := b.pod("p1", "")
		c := b.create(p, cfg)
		check := func(want string) {
			t.Helper()
			st, err := b.ContainerStatus(t.Context(), c, false)
			if err != nil {
				t.Fatal(err)
			}
			listed := b.ListContainers(nil)[0]
			for what, got := range map[string]*runtimeapi.ImageSpec{"status": st.GetStatus().GetImage(), "list": listed.GetImage()} {
				if got.GetImage() != want || got.GetUserSpecifiedImage() != "app:1" {
					t.Errorf("%s: %v, want %s", what, got, want)
				}
			}
			if st.GetStatus().GetImageId() != "sha256:1" || listed.GetImageId() != "sha256:1" {
				t.Errorf("ID %q, in the list %q", st.GetStatus().GetImageId(), listed.GetImageId())
			}
		}
		check("docker.io/library/app:1")
		images.name.Store("docker.io/library/app:2") // the tag was moved
		check("docker.io/library/app:2")
		images.name.Store("") // the image was removed
		check("sha256:1")
	})
}

// The handler of a sandbox is reported as it was asked for, also where it is the default.
func TestTheHandlerIsReportedAsItWasAskedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		want := map[string]string{b.pod("p1", ""): "", b.pod("p2", "vm"): "vm"}
		for _, s := range b.ListPodSandbox(nil) {
			st, err := b.PodSandboxStatus(t.Context(), s.GetId(), false)
			if err != nil {
				t.Fatal(err)
			}
			if s.GetRuntimeHandler() != want[s.GetId()] || st.GetStatus().GetRuntimeHandler() != want[s.GetId()] {
				t.Errorf("listed with %q, status with %q, want %q", s.GetRuntimeHandler(), st.GetStatus().GetRuntimeHandler(), want[s.GetId()])
			}
			delete(want, s.GetId())
		}
		if len(want) != 0 {
			t.Errorf("not listed: %v", want)
		}
	})
}

// Evented PLEG takes the first container of each name for the current one.
func TestContainersOfAPodComeNewestFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		sub := b.feed.Subscribe()
		defer sub.Close()
		p := b.pod("p1", "")
		var want []string
		for attempt := range uint32(3) {
			cfg := ctr("c1")
			cfg.Metadata.Attempt = attempt
			c := b.create(p, cfg)
			want = append([]string{c}, want...)
			time.Sleep(time.Second)
		}
		resp, err := b.PodSandboxStatus(t.Context(), p, false)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, got []*runtimeapi.ContainerStatus) {
			if len(got) != len(want) {
				t.Errorf("%s: %d containers, want %d", what, len(got), len(want))
				return
			}
			for i, st := range got {
				if st.GetId() != want[i] {
					t.Errorf("%s: container %d is attempt %d", what, i, st.GetMetadata().GetAttempt())
				}
			}
		}
		check("status", resp.GetContainersStatuses())
		for range 5 {
			ev, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if ev.GetContainerId() == want[0] {
				check("event", ev.GetContainersStatuses())
				return
			}
		}
		t.Error("no event of the last container")
	})
}

// Package cri encodes what it has listed before only once: lists contain the same message for as
// long as nothing has changed.
func TestListsShareWhatHasNotChanged(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		ctrs, sandboxes := b.ListContainers(nil), b.ListPodSandbox(nil)
		if b.ListContainers(nil)[0] != ctrs[0] || b.ListPodSandbox(nil)[0] != sandboxes[0] {
			t.Error("made anew though nothing has changed")
		}
		b.exit(c, 0)
		synctest.Wait()
		if got := b.ListContainers(nil)[0]; got == ctrs[0] || got.GetState() != exited || ctrs[0].GetState() != running {
			t.Errorf("after the end: %v, and before: %v", got.GetState(), ctrs[0].GetState())
		}
		if err := b.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := b.ListPodSandbox(nil)[0]; got == sandboxes[0] || got.GetState() == sandboxes[0].GetState() {
			t.Error("the stop does not show")
		}
	})
}
