// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// fakeDevices has one CDI device.
type fakeDevices struct{}

func (fakeDevices) Inject(s *specs.Spec, names []string) error {
	for _, n := range names {
		if n != "vendor.com/gpu=0" {
			return fmt.Errorf("CDI device %s: %w", n, errdefs.ErrNotFound)
		}
		s.Process.Env = append(s.Process.Env, "GPU=0")
	}
	return nil
}

func withDevice(name, device string) *runtimeapi.ContainerConfig {
	c := ctr(name)
	c.CDIDevices = []*runtimeapi.CDIDevice{{Name: device}}
	return c
}

// PROPERTIES 22: a container that asks for a device gets it, or is not made and leaves nothing.
func TestAContainerIsNotMadeWithoutTheDeviceThatItAskedFor(t *testing.T) {
	for _, tt := range []struct {
		name    string
		devices pod.Devices
		device  string
		refused func(error) bool
	}{
		{"known", fakeDevices{}, "vendor.com/gpu=0", nil},
		{"unknown", fakeDevices{}, "vendor.com/gpu=1", errdefs.IsNotFound},
		{"no devices at all", nil, "vendor.com/gpu=0", errdefs.IsNotImplemented},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Devices = tt.devices })
				sb := b.pod("p1", "")
				before := b.Left()
				id, err := b.CreateContainer(t.Context(), sb, withDevice("c1", tt.device))
				if tt.refused != nil {
					if err == nil || !tt.refused(err) {
						t.Fatalf("got %v", err)
					}
					b.expectLeft(before)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if env := b.Spec(id).Process.Env; len(env) == 0 || env[len(env)-1] != "GPU=0" {
					t.Errorf("env %q", env)
				}
			})
		})
	}
}

// restored configures a container that is restored from an archive.
func restored(name, archive string) *runtimeapi.ContainerConfig {
	cfg := ctr(name)
	cfg.Image.Image = archive
	return cfg
}

// PROPERTIES 22: what berth does not restore from, or into, is refused by name, and nothing is
// made.
func TestNotEveryCheckpointIsRestored(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p, vm := b.pod("p1", ""), b.pod("p2", "vm")
		before := b.Left()
		for _, tt := range []struct {
			pod, image, says string
			is               func(error) bool
		}{
			{p, world.Checkpoint, "checkpoint", errdefs.IsPermissionDenied}, // there is no policy
			{p, "/checkpoints/absent.tar", "/checkpoints/absent.tar", errdefs.IsNotFound},
			{vm, world.Archive, "vm", errdefs.IsFailedPrecondition},
			{vm, world.Checkpoint, "vm", errdefs.IsFailedPrecondition},
		} {
			_, err := b.CreateContainer(t.Context(), tt.pod, restored("c1", tt.image))
			if !tt.is(err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v", tt.image, err)
			}
		}
		if list := b.ListContainers(nil); len(list) != 0 {
			t.Errorf("%v", list)
		}
		b.expectLeft(before)
	})
}

// The image of a checkpoint is pulled if it is not on the node, and is what the status shows.
func TestTheImageOfACheckpointIsPulled(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		id := b.create(b.pod("p1", ""), restored("c1", world.ArchiveOfRemote))
		if n := b.Calls("pull", world.Remote); n != 1 {
			t.Errorf("pulled %d times", n)
		}
		st, err := b.ContainerStatus(t.Context(), id, false)
		if err != nil || st.GetStatus().GetImageRef() != world.Remote || st.GetStatus().GetImage().GetImage() != world.Image {
			t.Errorf("%v %v", st, err)
		}
	})
}

// PROPERTIES 32: an image that holds a checkpoint is what a container is restored from, if the
// policy lets it, and the archive that was in it is given back, whatever becomes of the container.
// The policy is asked about the image that the checkpoint was made with as well.
func TestACheckpointInAnImageIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, o := &policy{}, &told{}
		b := start(t, world.Free(), state.Loaded{}, withPolicy(p, o))
		sb := b.pod("p1", "")
		id := b.create(sb, restored("c1", world.Checkpoint))
		st, err := b.ContainerStatus(t.Context(), id, false)
		if err != nil || st.GetStatus().GetImageRef() != world.Image || st.GetStatus().GetImage().GetImage() != world.Image {
			t.Errorf("%v %v", st, err)
		}
		if want := []string{"restore ns " + world.Checkpoint + " sha256:1", "ns  sha256:1"}; !slices.Equal(p.asked, want) {
			t.Errorf("the policy was asked %q, want %q", p.asked, want)
		}
		before := b.Left()
		for _, op := range []string{"receive", "unpack", "create-container"} {
			b.Fail(op, "", 1)
			if _, err := b.CreateContainer(t.Context(), sb, restored("c2", world.Checkpoint)); err == nil {
				t.Errorf("%s failed, and the container was made", op)
			}
		}
		evil := restored("c3", world.Checkpoint)
		evil.Image.UserSpecifiedImage = "evil"
		if _, err := b.CreateContainer(t.Context(), sb, evil); !errdefs.IsPermissionDenied(err) || len(o.events) != 1 || b.Calls("receive", world.Checkpoint) != 4 {
			t.Errorf("%v, told %q", err, o.events)
		}
		synctest.Wait()
		b.expectLeft(before)
		if n := b.Received(); n != 0 {
			t.Errorf("%d archives were not given back", n)
		}
	})
}

// changed is a runtime that counts the changes which it makes in the writable layers of containers,
// and loses with a layer.
type changed struct {
	pod.Runtime
	made *int
}

func (c changed) ApplyChanges(context.Context, string, string, string) error { *c.made++; return nil }

func (c changed) RenewSnapshot(ctx context.Context, snapshotter, key, spare string) error {
	*c.made = 0
	return c.Runtime.RenewSnapshot(ctx, snapshotter, key, spare)
}

// unpacked are files of which the checkpoints are in a directory.
type unpacked struct {
	pod.Files
	dir string
}

func (f unpacked) Checkpoint(string) string { return f.dir }

// PROPERTIES 32: the task of a restore cannot be made at first, after a start that was cut off. The
// writable layer is renewed, and the changes of the checkpoint are made in the new one, too.
func TestARenewedLayerHasTheChangesOfACheckpoint(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(pod.UnpackedIn(dir).Changes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, func(t *testing.T, b *bubble) {
		id := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
		release := b.Hold("create-task", id)
		go func() { _ = b.StartContainer(context.WithoutCancel(t.Context()), id) }()
		synctest.Wait()
		loaded := b.kill()
		release()
		made := 0
		next := start(t, b.World, loaded, func(p *pod.Ports) {
			p.Runtime, p.Files = changed{p.Runtime, &made}, unpacked{p.Files, dir}
		})
		time.Sleep(10 * time.Second) // it undoes the start that was cut off
		next.Fail("create-task", id, 1)
		if err := next.StartContainer(t.Context(), id); err != nil || made != 1 {
			t.Errorf("the changes are in it %d times, %v", made, err)
		}
	})
}
