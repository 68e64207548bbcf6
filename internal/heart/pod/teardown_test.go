// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PROPERTIES 1 and 3: deletes that hang for ever hold up nothing else.
func TestDeletesThatHangDelayNothingElse(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		var wedged []string
		var release []func()
		for i := range 50 {
			c := b.run(p, fmt.Sprint("w", i))
			wedged = append(wedged, c)
			release = append(release, b.Hold("delete-task", c))
		}
		for _, c := range wedged {
			b.exit(c, 1)
		}
		began := time.Now()
		c := b.run(p, "free")
		b.exit(c, 7)
		synctest.Wait()
		b.expect(c, exited, 7, "Error")
		for _, c := range wedged {
			b.expect(c, exited, 1, "Error")
		}
		if err := b.RemoveContainer(t.Context(), c); err != nil || time.Since(began) != 0 {
			t.Errorf("the 51st waited %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.RemoveContainer(ctx, wedged[0]); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		for _, lift := range release {
			lift()
		}
		for _, c := range wedged {
			if err := b.RemoveContainer(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	})
}

// PROPERTIES 21: a delete that takes 30 s ends, though the first attempts are cut off.
func TestASlowDeleteIsNotStuck(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.Stall("delete-task", c, 100, 30*time.Second)
		b.exit(c, 42)
		time.Sleep(5 * time.Minute)
		if b.Held(c) != "" {
			t.Errorf("not deleted after %d attempts", b.Calls("delete-task", c))
		}
	})
}

func TestWhatCannotBeUndoneStaysAndIsFinishedLater(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Refuse("start-task", "", errors.New("no"))
		b.Refuse("cni-del", "", errors.New("no"))
		if _, err := b.RunPodSandbox(t.Context(), config("p1"), ""); err == nil {
			t.Fatal("it did not fail")
		}
		if l := b.ListPodSandbox(nil); len(l) != 1 || l[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Fatalf("%v", l)
		}
		b.Heal()
		time.Sleep(10 * time.Minute)
		if len(b.ListPodSandbox(nil)) != 0 {
			t.Error("it was not finished")
		}
		b.expectLeft(nil)
	})
}

// The disk is full when a creation is given up: nothing may be left, once there is room again.
func TestACreationGivenUpOnAFullDiskIsUndoneLater(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		release := b.Hold("cni-add", "")
		ended := make(chan error)
		go func() {
			_, err := b.RunPodSandbox(t.Context(), config("p1"), "")
			ended <- err
		}()
		synctest.Wait()
		b.DiskFull(true)
		b.Refuse("start-task", "", errors.New("no"))
		release()
		if err := <-ended; err == nil {
			t.Fatal("it did not fail")
		}
		b.Heal()
		time.Sleep(10 * time.Minute)
		if l := b.ListPodSandbox(nil); len(l) != 0 {
			t.Errorf("left: %v", l)
		}
		b.expectLeft(nil)
	})
}

// Releases wait for a quiet moment, and no longer than a second; what somebody waits for does not.
func TestReleasesLetSettlesGoFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		var cs []string
		for _, name := range strings.Split("abcdefghij", "") {
			cs = append(cs, b.run(p, name))
		}
		before := len(b.Did())
		for _, c := range cs {
			b.exit(c, 1)
			time.Sleep(30 * time.Millisecond)
		}
		for _, d := range b.Did()[before:] {
			if strings.HasPrefix(d, "delete-task") && d != "delete-task "+cs[0] { // the first came alone
				t.Errorf("a release began between exits: %s", d)
			}
		}
		began := time.Now()
		if err := b.RemoveContainer(t.Context(), cs[1]); err != nil || time.Since(began) != 0 {
			t.Errorf("a removal waited %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Second)
		for _, c := range cs {
			if b.Held(c) != "" {
				t.Errorf("%s is not released", c)
			}
		}
	})
}

// A release that hangs keeps its place among the young ones for a second only.
func TestHangingReleasesDoNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		var wg sync.WaitGroup
		for i := range 100 {
			c := b.run(p, fmt.Sprint("c", i))
			b.Hold("delete-task", c)
			wg.Go(func() { b.exit(c, 1) })
		}
		free := b.run(p, "free")
		b.exit(free, 1)
		time.Sleep(5 * time.Second)
		if b.Held(free) != "" {
			t.Error("not released after 5 s")
		}
		wg.Wait()
	})
}
