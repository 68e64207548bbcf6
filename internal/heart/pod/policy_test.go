// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// policy is one that refuses what is asked for as "evil" or as what no names, and notes what it was
// asked.
type policy struct {
	mu    sync.Mutex
	asked []string
	no    string
}

func (p *policy) Allow(_ context.Context, namespace, asked string, img pod.Image) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, strings.Join([]string{namespace, asked, img.ID}, " "))
	if asked == "evil" || p.no == "all" {
		return fmt.Errorf("image %s: rule 1: %w", asked, errdefs.ErrPermissionDenied)
	}
	return nil
}

// Restore notes the question as one, and lets everything in that Allow does.
func (p *policy) Restore(ctx context.Context, namespace, asked string, img pod.Image) error {
	return p.Allow(ctx, "restore "+namespace, asked, img)
}

// told is an observer that keeps refusals.
type told struct {
	mu     sync.Mutex
	events []string
}

func (o *told) Note(id string, e event.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if refused, ok := e.(event.ImageRefused); ok {
		o.events = append(o.events, id+" "+refused.Container+" "+refused.Err)
	}
}

func withPolicy(p pod.Policy, o pod.Observer) func(*pod.Ports) {
	return func(ports *pod.Ports) {
		ports.Policy = p
		if o != nil {
			ports.Observer = o
		}
	}
}

// PROPERTIES 40: a container is made from no image that the policy does not allow, nor does it
// mount one, and the timeline of the pod says so. What was made is left alone: it starts, and it is
// there after a restart.
func TestThePolicyIsAskedAboutEachImageOfAContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := &policy{}, &told{}
		b := start(t, world.Free(), state.Loaded{}, withPolicy(p, o))
		sb := b.pod("p1", "")
		if len(p.asked) != 0 {
			t.Errorf("asked about a sandbox: %q", p.asked)
		}
		before := b.Left()
		evil, user := ctr("c1"), ctr("c2")
		evil.Image.Image = "evil"
		user.Image.UserSpecifiedImage = "evil"
		volume := withImages("c3", "one", "two")
		volume.Mounts[1].Image.UserSpecifiedImage = "evil"
		for _, c := range []*runtimeapi.ContainerConfig{evil, user, volume} {
			_, err := b.CreateContainer(t.Context(), sb, c)
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "rule 1") ||
				(c == volume) != strings.Contains(fmt.Sprint(err), crierrors.ErrImageVolumeMountFailed.Error()) {
				t.Errorf("%s: %v", c.GetMetadata().GetName(), err)
			}
		}
		if len(b.ListContainers(nil)) != 0 {
			t.Error("there is a container")
		}
		b.expectLeft(before)
		if len(o.events) != 3 || slices.ContainsFunc(o.events, func(e string) bool { return !strings.HasPrefix(e, sb+" ") || !strings.Contains(e, "rule 1") }) {
			t.Errorf("%q", o.events)
		}
		id := b.create(sb, withImages("c4", "one"))
		if want := []string{
			"ns evil sha256:1",
			"ns evil sha256:1",
			"ns " + world.Image + " sha256:1",
			"ns one sha256:1",
			"ns evil sha256:1",
			"ns " + world.Image + " sha256:1",
			"ns one sha256:1",
		}; !slices.Equal(p.asked, want) {
			t.Errorf("%q, want %q", p.asked, want)
		}
		p.no = "all"
		next := start(t, b.World, b.kill(), withPolicy(p, nil))
		if err := next.Relist(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := next.StartContainer(t.Context(), id); err != nil {
			t.Errorf("a container that was there does not start: %v", err)
		}
		if _, err := next.RunPodSandbox(t.Context(), config("p2"), ""); err != nil {
			t.Errorf("a pod does not start: %v", err)
		}
		asked := len(p.asked)
		if _, err := next.CreateContainer(t.Context(), sb, restored("c5", world.Archive)); !errdefs.IsPermissionDenied(err) {
			t.Errorf("a container from a checkpoint: %v", err)
		}
		if got := p.asked[asked:]; len(got) != 1 || got[0] != "ns  sha256:1" {
			t.Errorf("%q", got)
		}
	})
}

// moving are images whose names stand for another image each time that one is looked up.
type moving struct {
	pod.Images
	n atomic.Int64
}

func (m *moving) Resolve(ref string) (pod.Image, error) {
	img, err := m.Images.Resolve(ref)
	img.ID = fmt.Sprintf("sha256:%d", m.n.Add(1))
	img.ChainID = "chain of " + img.ID
	return img, err
}

// PROPERTIES 57: a container is made from, and mounts, the images that the policy was asked about,
// also while their names move.
func TestAContainerIsMadeFromTheImagesThatThePolicyWasAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, m := &policy{}, &moving{}
		b := start(t, world.Free(), state.Loaded{}, withPolicy(p, nil), func(ports *pod.Ports) {
			m.Images = ports.Images
			ports.Images = m
		})
		sb := b.pod("p1", "")
		b.create(sb, withImages("c1", "one", "two"))
		ct := b.Records().Containers[0].Container
		want := []string{
			"ns " + world.Image + " " + ct.ImageID,
			"ns one " + ct.ImageVolumes[0].ImageID,
			"ns two " + ct.ImageVolumes[1].ImageID,
		}
		if !slices.Equal(p.asked, want) || m.n.Load() != 3 {
			t.Errorf("asked %q after %d look-ups, want %q", p.asked, m.n.Load(), want)
		}
		for _, vol := range ct.ImageVolumes {
			if vol.ChainID != "chain of "+vol.ImageID {
				t.Errorf("%+v", vol)
			}
		}
	})
}
