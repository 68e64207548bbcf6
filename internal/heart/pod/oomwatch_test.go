// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/test/world"
)

// PROPERTIES 36: a child was killed days before an exit 1, which was OOMKilled. Hours show the same.
func TestAKillLongBeforeDoesNotExplainAnEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		itself, killed, soon := b.run(p, "itself"), b.run(p, "killed"), b.run(p, "soon")
		b.OOM(itself)
		b.OOM(killed)
		time.Sleep(3 * time.Hour)
		b.OOM(soon)
		time.Sleep(900 * time.Millisecond)
		b.exit(itself, 1)
		b.exit(killed, 137) // by somebody's SIGKILL
		b.exit(soon, 1)
		synctest.Wait()
		b.expect(itself, exited, 1, "Error")
		b.expect(killed, exited, 137, "Error")
		b.expect(soon, exited, 1, "OOMKilled")
		b.expectMessage(soon, "the OOM killer fired: the container reached its memory limit")
	})
}

// PROPERTIES 33 and 36: the kernel could not be asked once to notify of a container's OOM kills, or its
// counter could not be read once, and nobody asked again: what the container survived was not
// noticed, and explained an end on a later day.
func TestANoticeOfOOMKillsThatWasAskedForInVainIsAskedForAgain(t *testing.T) {
	for _, question := range []string{"watch-oom", "oom"} {
		for _, why := range world.InVain {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.pod("p1", "")
				b.AskInVain(question, "", 2, why)
				c := b.run(p, "c1")
				time.Sleep(6 * time.Second)
				b.OOM(c)
				time.Sleep(2 * time.Second)
				b.expectMessage(c, "1 OOM kill survived")
				time.Sleep(time.Hour)
				b.exit(c, 137)
				synctest.Wait()
				b.expect(c, exited, 137, "Error")
			})
		}
	}
}

func (b *bubble) expectMessage(id, want string) {
	b.t.Helper()
	st, err := b.ContainerStatus(b.t.Context(), id, false)
	if err != nil || !strings.HasPrefix(st.GetStatus().GetMessage(), want) || want == "" && st.GetStatus().GetMessage() != "" {
		b.t.Errorf("the message is %q, %v, want %q", st.GetStatus().GetMessage(), err, want)
	}
}

// PROPERTIES 36: what a container survives is counted, one commit a second at most, and the next
// berth knows it.
func TestOOMKillsThatAContainerSurvivesAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.expectMessage(c, "")
		before := len(b.Did())
		for range 100 {
			b.OOM(c)
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		commits := 0
		for _, did := range b.Did()[before:] {
			if did == "commit "+c {
				commits++
			}
		}
		if commits == 0 || commits > 3 {
			t.Errorf("%d commits in two seconds", commits)
		}
		b.expectMessage(c, "100 OOM kills survived, the last at ")
		records := b.kill()
		b.OOM(c) // nobody is there
		time.Sleep(time.Hour)
		b = restart(t, b.World, records)
		b.expectMessage(c, "100 OOM kills survived")
		time.Sleep(2 * time.Second)
		b.expectMessage(c, "101 OOM kills survived")
		b.exit(c, 1)
		synctest.Wait()
		b.expect(c, exited, 1, "Error")
		b.OOMKilled(c) // a late report of containerd does not change what was counted
		synctest.Wait()
		b.expect(c, exited, 1, "Error")
	})
}

// PROPERTIES 36: a kill was counted a tenth of a second after it had been noticed, was said to be
// survived a second after that, and explained an end in the tenth of a second after it.
func TestWhatAContainerHasSurvivedExplainsNoEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		b.OOM(c)
		time.Sleep(90 * time.Millisecond)
		b.OOM(c)
		survived := func() bool {
			st, err := b.ContainerStatus(t.Context(), c, false)
			return err != nil || strings.HasPrefix(st.GetStatus().GetMessage(), "2 OOM kills survived")
		}
		for range 3000 {
			if survived() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		b.expectMessage(c, "2 OOM kills survived")
		b.exit(c, 137) // by somebody's SIGKILL
		synctest.Wait()
		b.expect(c, exited, 137, "Error")
	})
}

// PROPERTIES 36: the kernel does not notify, as where inotify is used up, and the audit asks in vain. A
// kill may have been at any time since the counter was read last: it explains that the program
// itself was killed, and nothing else. One that was counted an hour before explains nothing.
func TestAKillAtAnUnknownInstantExplainsASIGKILL(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		b.Refuse("watch-oom", "", errors.New("no space left on device"))
		p := b.pod("p1", "")
		killed, itself, reported := b.run(p, "killed"), b.run(p, "itself"), b.run(p, "reported")
		old := b.run(p, "old")
		b.OOM(old)
		b.OOM(reported)
		b.OOMKilled(reported) // by containerd, an hour before its end
		time.Sleep(time.Hour + 100*time.Millisecond)
		b.OOM(killed)
		b.OOM(itself)
		time.Sleep(1500 * time.Millisecond) // the next audit is later
		b.exit(old, 137)
		b.exit(killed, 137)
		b.exit(itself, 1)
		b.exit(reported, 137)
		synctest.Wait()
		b.expect(killed, exited, 137, "OOMKilled")
		b.expect(old, exited, 137, "Error")
		b.expect(itself, exited, 1, "Error")
		b.expect(reported, exited, 137, "Error")
	})
}

// A group is watched as long as its container runs, and its counter is not read without a reason.
func TestNobodyReadsACounterThatDoesNotGrow(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.run(b.pod("p1", ""), "c1")
		before := len(b.Did())
		time.Sleep(time.Hour)
		if did := b.Did()[before:]; slices.Contains(did, "oom "+world.CgroupOf(c)) {
			t.Errorf("%q", did)
		}
	})
}
