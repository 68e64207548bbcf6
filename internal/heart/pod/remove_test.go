// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/heart/state"
	"berth/test/world"
)

// A removal that arrives while the last step of a creation is being committed is not lost.
func TestARemovalDuringACreationTakesEffect(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		left := b.Left()
		release := b.Hold("create-container", "")
		created := make(chan error, 1)
		go func() {
			_, err := b.CreateContainer(t.Context(), p, ctr("c1"))
			created <- err
		}()
		synctest.Wait()
		c := b.Unit(b.Records().Containers[0].ID)
		if err := c.MarkRemoving(); err != nil {
			t.Fatal(err)
		}
		release()
		if err := <-created; !errdefs.IsFailedPrecondition(err) {
			t.Errorf("created: %v", err)
		}
		<-c.Removed()
		b.expectLeft(left)
	})
}

// A removal whose caller gives up is on record, says what it waits for, and goes on by itself.
func TestARemovalThatHangsIsOnRecordAndGoesOn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		release := b.Hold("delete-task", c)
		b.exit(c, 42)
		time.Sleep(2 * time.Second) // the release is at it
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := b.RemoveContainer(ctx, c)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still releasing task") {
			t.Errorf("it says: %v", err)
		}
		if !b.Unit(c).Now().Removing {
			t.Error("the removal is not on record")
		}
		release()
		time.Sleep(time.Minute)
		if b.Unit(c) != nil {
			t.Error("it did not go on")
		}
	})
}

// A sandbox that is removed together with its containers may wait for them. Nothing is wrong then:
// each removal of a pod could look like a failed one in the log.
func TestASandboxThatWaitsForItsContainersIsNotAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &failures{}
		b := start(t, world.Free(), state.Loaded{}, func(p *pod.Ports) { p.Observer = said })
		p := b.pod("p1", "")
		c := b.run(p, "c1")
		release := b.Hold("delete-task", c)
		removed := make(chan error, 1)
		go func() { removed <- b.RemovePodSandbox(t.Context(), p) }()
		time.Sleep(5 * time.Second)
		release()
		if err := <-removed; err != nil {
			t.Error(err)
		}
		if said.waits == 0 || len(said.failed) > 0 {
			t.Errorf("it was said %d times that the sandbox waits; failed: %q", said.waits, said.failed)
		}
	})
}

// failures keeps what is reported of attempts.
type failures struct {
	mu     sync.Mutex
	waits  int
	failed []string
}

func (f *failures) Note(_ string, e event.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := e.(event.AttemptPostponed); ok {
		f.waits++
	}
	if line := event.Describe(e); line.Err != "" {
		f.failed = append(f.failed, line.Message+": "+line.Err)
	}
}

// The client that asked for the removal of what runs has gone before it could be killed: the audit
// goes on.
func TestARemovalOfWhatRunsGoesOnWithoutItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.Refuse("signal", c, errors.New("not now"))
		if err := b.RemoveContainer(t.Context(), c); err == nil {
			t.Fatal("it succeeded")
		}
		b.Heal()
		time.Sleep(10 * time.Second)
		if b.Unit(c) != nil {
			t.Error("it did not go on")
		}
	})
}
