// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func join(t *testing.T, s *Shims, pod string, most int) (group, other string) {
	t.Helper()
	group, other = s.Join(pod, "runc", most)
	if s.Key(pod) != group {
		t.Errorf("%s joined %s and is in %s", pod, group, s.Key(pod))
	}
	return group, other
}

// A group is filled up before another one begins, and the place of a pod that has left is given to
// the next, unless nobody stays: that shim is about to end.
func TestPodsFillAGroup(t *testing.T) {
	s := node()
	first, other := join(t, s, "a", 2)
	if second, _ := join(t, s, "b", 2); second != first || other != "" {
		t.Errorf("b is in %s and a in %s with %q", second, first, other)
	}
	if third, _ := join(t, s, "c", 2); third == first {
		t.Error("three pods are in a group of two")
	}
	join(t, s, "full", 2)
	if kind, _ := s.Join("d", "crun", 2); kind == first || s.Key("c") == kind {
		t.Error("pods of different handlers share a shim")
	}
	s.Leave("a")
	if next, _ := join(t, s, "e", 2); next != first {
		t.Error("the place of a pod that has left is not taken")
	}
	s.Leave("b")
	s.Leave("e")
	s.Leave("c")
	s.Leave("full")
	if next, _ := join(t, s, "f", 2); next == first {
		t.Error("a pod joined a group that nobody stays in")
	}
	for _, pod := range []string{"a", "b", "c", "full", "d", "e", "f"} {
		s.Drop(pod)
	}
	if s.Grouped() || len(s.groups.all) != 0 {
		t.Errorf("something is remembered of pods that are gone: %v", s.groups)
	}
}

// PROPERTIES 6: the shim of a group is left alone as long as one of its pods stays, and is ended
// with the last, in whatever order they go.
func TestASharedShimIsEndedWithItsLastPod(t *testing.T) {
	s := node()
	defer s.Wait()
	group, _ := join(t, s, thisID, 3)
	join(t, s, otherID, 3)
	join(t, s, "third", 3)
	shim, child, _ := startShim(t, group)
	s.Remember(otherID, child)
	if !s.Knows(thisID) || s.HasEnded(thisID) {
		t.Fatal("the shim of the group is not known as that of each pod")
	}
	if _, other := join(t, s, "fourth", 4); other == "" {
		t.Error("nobody says whom to ask about a shim that runs")
	}
	s.Drop("fourth")
	s.Leave("third") // its objects are deleted last
	s.Leave(thisID)
	try(t, s.End(t.Context(), thisID))
	if s.HasEnded(otherID) {
		t.Fatal("a shim was ended that another pod stays in")
	}
	s.Leave(otherID)
	try(t, s.End(t.Context(), otherID))
	_ = shim.Wait()
	if shim.ProcessState.ExitCode() >= 0 {
		t.Error("a shim that nobody stays in, and that does not end, was not killed")
	}
	try(t, s.End(t.Context(), "third"))
	if s.Grouped() || len(s.of) != 0 {
		t.Errorf("something is remembered of pods that are gone: %v %v", s.groups, s.of)
	}
	_ = unix.Kill(int(child), unix.SIGKILL)
}

// A pod whose shim had died, and could not be started again at once, was taken for one that leaves
// for good. Its mate was then the last one that stayed, and the shim was killed under the pod's
// containers when the mate went.
func TestAPodThatHasAShimAgainKeepsIt(t *testing.T) {
	s := node()
	defer s.Wait()
	group, _ := join(t, s, thisID, 2)
	join(t, s, otherID, 2)
	first, child, end := startShim(t, group)
	s.Remember(thisID, child)
	end()
	_ = first.Wait()
	s.Leave(thisID) // the next shim could not be started
	s.Stay(thisID)  // and then it could
	second, _, endSecond := startShim(t, group)
	s.Forget(thisID, second.Process.Pid)
	s.Add(thisID, second.Process.Pid)
	s.Leave(otherID)
	try(t, s.End(t.Context(), otherID))
	if s.HasEnded(thisID) || !s.Is(thisID, second.Process.Pid) {
		t.Error("the shim was killed under a pod that it serves")
	}
	endSecond()
	_ = second.Wait()
	s.Leave(thisID)
	try(t, s.End(t.Context(), thisID))
	if s.Grouped() || len(s.of) != 0 {
		t.Errorf("something is remembered of pods that are gone: %v %v", s.groups, s.of)
	}
}

// A pod that was the last of its group is given a shim again, and nobody knows which process it is,
// since its start was cut off: it is looked for.
func TestAShimThatComesAfterTheLastIsLookedFor(t *testing.T) {
	s := node()
	defer s.Wait()
	group, _ := join(t, s, thisID, 2)
	join(t, s, otherID, 2)
	first, child, end := startShim(t, group)
	s.Remember(thisID, child)
	end()
	_ = first.Wait()
	s.Leave(thisID)
	s.Leave(otherID)
	try(t, s.End(t.Context(), otherID))
	s.Stay(thisID)
	second, secondChild, _ := startShim(t, group)
	defer func() { _ = unix.Kill(int(secondChild), unix.SIGKILL) }()
	s.Leave(thisID)
	try(t, s.End(t.Context(), thisID))
	_ = second.Wait()
	if second.ProcessState.ExitCode() >= 0 {
		t.Error("it was not killed")
	}
}

// The shim of a group ends while one of its pods is given the next: the group is not over.
func TestAGroupIsNotOverWhileAPodStays(t *testing.T) {
	s := node()
	defer s.Wait()
	group, _ := join(t, s, thisID, 2)
	join(t, s, otherID, 2)
	s.Leave(thisID)
	s.Leave(otherID)
	s.Stay(thisID)
	s.ended(group, otherID)
	if s.groups.all[group].over {
		t.Error("a shim that the pod may have is not looked for")
	}
	s.Leave(thisID)
	s.ended(group, thisID)
	if s.Grouped() {
		t.Error("the group of pods that are gone is remembered")
	}
}

// Two pods that left a group at the same time both waited for its shim, and were both cut off. One
// of the two descriptors of the shim stayed open for good.
func TestTwoPodsThatLeaveAtOnceLeaveNoDescriptor(t *testing.T) {
	s := node()
	defer s.Wait()
	group, _ := join(t, s, thisID, 2)
	join(t, s, otherID, 2)
	shim, child, end := startShim(t, group)
	defer func() { end(); _ = shim.Wait() }()
	s.Remember(thisID, child)
	s.Leave(thisID)
	s.Leave(otherID)
	before := descriptors(t, shim.Process.Pid)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, pod := range []string{thisID, otherID} {
		try(t, s.search(t.Context(), pod)) // as End does where the shim is not known
		s.mu.Lock()
		p := s.of[group]
		p.awaited = time.Now().Add(time.Hour) // it is not killed before it is given up
		s.of[group] = p
		s.mu.Unlock()
		all.Go(func() {
			if err := s.End(ctx, pod); !errors.Is(err, context.Canceled) {
				t.Errorf("the end of %s was not cut off: %v", pod, err)
			}
		})
		for s.Knows(pod) { // until End waits for it
			runtime.Gosched()
		}
	}
	if n := descriptors(t, shim.Process.Pid); n != before+1 {
		t.Errorf("the two that leave have %d descriptors of the shim", n)
	}
	cancel()
	all.Wait()
	if n := descriptors(t, shim.Process.Pid); n != before {
		t.Errorf("there are %d descriptors of the shim, not %d", n, before)
	}
}

// descriptors counts the pidfds of a process that this one has.
func descriptors(t *testing.T, pid int) (n int) {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	try(t, err)
	for _, path := range infos {
		b, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(b), fmt.Sprintf("\nPid:\t%d\n", pid)) {
			n++
		}
	}
	return n
}

// The shim of a group that was being started when containerd was killed is in no list: it is looked
// for when the last pod goes.
func TestAShimThatNobodyKnowsIsEndedWithItsGroup(t *testing.T) {
	s := node()
	defer s.Wait()
	s.Rejoin(thisID, "group-1", "runc")
	shim, child, _ := startShim(t, "group-1")
	defer func() { _ = unix.Kill(int(child), unix.SIGKILL) }()
	try(t, s.End(t.Context(), thisID))
	_ = shim.Wait()
	if shim.ProcessState.ExitCode() >= 0 {
		t.Error("it was not killed")
	}
}

// No pod joins a group whose shim has died, was closed because it does not answer, or is not known
// yet.
func TestAGroupWithoutAGoodShimTakesNoPod(t *testing.T) {
	s := node()
	defer s.Wait()
	s.Rejoin("restored", "group-1", "runc")
	if g, _ := join(t, s, "a", 9); g == "group-1" {
		t.Error("a pod joined a group whose shim is not known")
	}
	s.Drop("a")
	shim, child, end := startShim(t, "group-1")
	s.Remember("restored", child)
	if g, other := join(t, s, "b", 9); g != "group-1" || other == "" {
		t.Errorf("a pod did not join the group of the records: %s %s", g, other)
	}
	s.Close("group-1")
	if g, _ := join(t, s, "c", 9); g == "group-1" {
		t.Error("a pod joined a group that was closed")
	}
	s.Rejoin("of-old", "group-2", "runc")
	dead, deadChild, endDead := startShim(t, "group-2")
	s.Remember("of-old", deadChild)
	endDead()
	_ = dead.Wait()
	if g, _ := join(t, s, "d", 9); g == "group-2" {
		t.Error("a pod joined a group whose shim has ended")
	}
	end()
	_ = shim.Wait()
}

// A shim that another pod of the group has started again is not forgotten by the next pod that
// does.
func TestTheNextShimOfAGroupIsRemembered(t *testing.T) {
	s := node()
	defer s.Wait()
	group, _ := join(t, s, thisID, 2)
	join(t, s, otherID, 2)
	first, child, end := startShim(t, group)
	s.Remember(thisID, child)
	end()
	_ = first.Wait()
	second, _, endSecond := startShim(t, group)
	for _, pod := range []string{thisID, otherID} {
		s.Forget(pod, second.Process.Pid)
		s.Add(pod, second.Process.Pid)
		if s.HasEnded(pod) || !s.Is(pod, second.Process.Pid) {
			t.Errorf("%s has another shim", pod)
		}
	}
	endSecond()
	_ = second.Wait()
	if !s.HasEnded(thisID) {
		t.Error("it is not seen that the shim has ended")
	}
}

// The death of a shim that pods share ends no container: the program that cleans up does nothing,
// also where the OCI runtime has a record.
func TestACleanupOfASharedShimSparesWhatRuns(t *testing.T) {
	dir := t.TempDir()
	records, shim := filepath.Join(dir, "records"), filepath.Join(dir, "shim-runc")
	try(t, os.MkdirAll(filepath.Join(records, thisID), 0o700))
	try(t, os.WriteFile(shim, []byte("#!/bin/sh\nprintf 'shim %s' \"$*\"\n"), 0o700))
	c := Cleanups{dir: filepath.Join(dir, "programs")}
	path, err := c.write(t.Context(), spareScript, shim, records)
	try(t, err)
	for last, want := range map[string]string{"delete": "\x10\xff\x01", "start": "shim -id " + thisID + " start"} {
		out, err := exec.Command(path, "-id", thisID, last).Output()
		try(t, err)
		if string(out) != want {
			t.Errorf("%s: %q", last, out)
		}
	}
}
