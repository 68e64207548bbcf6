// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/state"
	"berth/test/world"
)

// restored is the configuration of a container that is restored from an archive.
func restored(name, archive string) *runtimeapi.ContainerConfig {
	cfg := ctr(name)
	cfg.Image.Image = archive
	return cfg
}

// PROPERTIES 22: what berth does not restore from, or into, is refused by name, and nothing is made.
func TestNotEveryCheckpointIsRestored(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p, vm := b.pod("p1", ""), b.pod("p2", "vm")
		before := b.Left()
		for _, tt := range []struct {
			pod, image, says string
			is               func(error) bool
		}{
			{p, world.Checkpoint, "checkpoint", errdefs.IsNotImplemented},
			{p, "/checkpoints/absent.tar", "/checkpoints/absent.tar", errdefs.IsNotFound},
			{vm, world.Archive, "vm", errdefs.IsFailedPrecondition},
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

// PROPERTIES 32: a process that was restored runs, and no shim knows it. The start fails, and the
// process is ended.
func TestAProcessOfARestoreThatWasCutOffIsEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", world.Pinned)
		before := b.Left()
		id := b.create(p, restored("c1", world.Archive))
		b.CutRestores(1)
		if err := b.StartContainer(t.Context(), id); err == nil {
			t.Error("it was started")
		}
		synctest.Wait()
		b.expect(id, exited, 128, "StartError")
		if proc := b.Process(id); proc == nil || !proc.Ended {
			t.Errorf("%+v", proc)
		}
		if err := b.RemoveContainer(t.Context(), id); err != nil {
			t.Error(err)
		}
		b.expectLeft(before)
	})
}

// The start of a container that is to be restored is refused before the shim is asked: the shim never
// takes its ends of the stdio, which is released all the same.
func TestTheStdioOfARefusedRestoreIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatekeeper{
			plugin: plugin{fail: map[string]error{"starting": errors.New("not now")}},
			look:   func(string, pod.Target) {},
		}
		b := start(t, world.Free(), state.Loaded{}, withHooks(g))
		id := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
		if err := b.StartContainer(t.Context(), id); err == nil {
			t.Error("a start that a hook refused succeeded")
		}
		time.Sleep(time.Minute)
		b.expect(id, exited, 128, "StartError")
		if holds := b.Unit(id).Now().Holds; holds.Has(state.HoldIO) {
			t.Errorf("it still holds %s", holds.Names())
		}
	})
}

// restoring begins a start of which the shim has restored the process. berth asks which one that is,
// and does not get the answer before release is called.
func restoring(t *testing.T, b *bubble) (id string, began <-chan error, release func()) {
	t.Helper()
	ctr := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
	release = b.Hold("get-task", ctr)
	started := make(chan error, 1)
	go func() { started <- b.StartContainer(context.WithoutCancel(t.Context()), ctr) }()
	synctest.Wait()
	if st := b.Unit(ctr).Now(); st.Phase != state.Created || !strings.HasSuffix(st.Restoring, ctr) {
		t.Errorf("the record says %+v", st)
	}
	if !b.Process(ctr).Started {
		t.Error("it is not restored")
	}
	return ctr, started, release
}

// PROPERTIES 32: a process that ends before anybody watches it ends with its own code.
func TestAProcessEndsAsSoonAsItIsRestored(t *testing.T) {
	for _, exact := range []bool{true, false} {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.World.Exact = exact
			id, began, release := restoring(t, b)
			b.exit(id, 7)
			synctest.Wait()
			release()
			if err := <-began; err != nil {
				t.Error(err)
			}
			synctest.Wait()
			b.expect(id, exited, 7, "Error")
		})
	}
}

// PROPERTIES 32: berth is killed when the shim has restored the process and no record has it: the
// next berth asks the shim, and watches the process, or reports how it ended.
func TestAProcessIsFoundThatNoRecordHas(t *testing.T) {
	for _, ends := range []bool{false, true} {
		inBubble(t, func(t *testing.T, b *bubble) {
			id, _, release := restoring(t, b)
			loaded := b.kill()
			release()
			if ends {
				b.exit(id, 7)
			}
			next := restart(t, b.World, loaded)
			if !ends {
				next.expect(id, running, 0, "")
				if st := next.Unit(id).Now(); st.Restoring != "" || st.Process.Pid == 0 {
					t.Errorf("the record says %+v", st)
				}
				next.exit(id, 7)
			}
			synctest.Wait()
			next.expect(id, exited, 7, "Error")
		})
	}
}

// PROPERTIES 32: as before, but the shim is killed, too: nobody knows the process, and it is ended.
func TestAProcessIsEndedThatNobodyKnows(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		id, _, release := restoring(t, b)
		p := b.Unit(id).Pod()
		loaded := b.kill()
		release()
		b.KillShim(p)
		next := restart(t, b.World, loaded)
		synctest.Wait()
		next.expect(id, exited, 128, "StartError")
		if proc := next.Process(id); !proc.Ended {
			t.Errorf("%+v", proc)
		}
	})
}

// PROPERTIES 32: berth does not get to know whether the process that it watches is the restored one.
// The start fails, the process is ended, and the end is visible at once.
func TestARestoreFailsThatTheShimDoesNotConfirm(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		id := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
		watched := b.Hold("watch", id)
		started := make(chan error, 1)
		go func() { started <- b.StartContainer(t.Context(), id) }()
		synctest.Wait()
		b.Fail("get-task", id, 1)
		watched()
		if err := <-started; err == nil {
			t.Error("it was started")
		}
		time.Sleep(2 * time.Second)
		b.expect(id, exited, 128, "StartError")
		if proc := b.Process(id); !proc.Ended {
			t.Errorf("%+v", proc)
		}
	})
}

// PROPERTIES 32: a process ends after the shim has said that it runs, and before it is on record: the
// notices that come meanwhile are not those of a start that was undone.
func TestAProcessEndsBeforeItsRestoreIsRecorded(t *testing.T) {
	for _, exact := range []bool{true, false} {
		inBubble(t, func(t *testing.T, b *bubble) {
			b.World.Exact = exact
			id := b.create(b.pod("p1", world.Pinned), restored("c1", world.Archive))
			watched := b.Hold("watch", id)
			started := make(chan error, 1)
			go func() { started <- b.StartContainer(t.Context(), id) }()
			synctest.Wait()
			answer := b.HoldAnswer("get-task", id) // the shim says that it runs
			watched()
			synctest.Wait()
			b.exit(id, 7)
			synctest.Wait()
			answer()
			if err := <-started; err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Second)
			b.expect(id, exited, 7, "Error")
		})
	}
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
