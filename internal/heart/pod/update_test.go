// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/heart/state"
	"berth/test/world"
)

type resources = runtimeapi.LinuxContainerResources

// limited runs a container with a CPU and a memory limit.
func (b *bubble) limited(pod string, run bool) string {
	b.t.Helper()
	b.names++
	cfg := ctr(fmt.Sprint("n", b.names))
	cfg.Linux.Resources = &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500}
	id := b.create(pod, cfg)
	if run {
		if err := b.StartContainer(b.t.Context(), id); err != nil {
			b.t.Fatal(err)
		}
	}
	return id
}

// expectResources fails unless the status of a container reports want.
func (b *bubble) expectResources(id string, want *resources) {
	b.t.Helper()
	st, err := b.ContainerStatus(b.t.Context(), id, false)
	if err != nil {
		b.t.Fatal(err)
	}
	if got := st.GetStatus().GetResources().GetLinux(); !proto.Equal(got, want) {
		b.t.Errorf("the status reports %v, want %v", got, want)
	}
}

// asked returns how often the shim of a task was asked for a change, and the last CPU quota and
// memory limit that it was asked for; 0 for none.
func (b *bubble) asked(id string) (n int, quota, memory int64) {
	updates := b.Process(id).Updates
	if b.Held(id) != "task" || len(updates) == 0 {
		return 0, 0, 0
	}
	last := updates[len(updates)-1]
	if last.CPU != nil && last.CPU.Quota != nil {
		quota = *last.CPU.Quota
	}
	if last.Memory != nil && last.Memory.Limit != nil {
		memory = *last.Memory.Limit
	}
	return len(updates), quota, memory
}

// later runs an update whose caller waits as long as it takes.
func (b *bubble) later(id string, r *resources) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.UpdateContainerResources(b.t.Context(), id, r) }()
	synctest.Wait()
	return done
}

// PROPERTIES 24: the shim is asked for an update that is on disk already.
func TestAnUpdateIsOnRecordBeforeTheShimIsAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), true)
		synctest.Wait() // its output is read by now
		before := len(b.Did())
		if err := b.UpdateContainerResources(t.Context(), c, &resources{CpuQuota: 70000, CpusetCpus: "0-1"}); err != nil {
			t.Fatal(err)
		}
		want := []string{"commit " + c, "update-task " + c, "get-container " + c, "update-container " + c, "commit " + c}
		if did := b.Did()[before:]; !slices.Equal(did, want) {
			t.Errorf("the steps were %q, want %q", did, want)
		}
		// What the request does not set keeps its value, and the OCI runtime is not asked for it.
		b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 70000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500, CpusetCpus: "0-1"})
		if _, quota, memory := b.asked(c); quota != 70000 || memory != 0 {
			t.Errorf("the shim was asked for a quota of %d and %d bytes of memory", quota, memory)
		}
		if r := b.Spec(c).Linux.Resources; *r.CPU.Quota != 70000 || *r.CPU.Period != 100000 || r.CPU.Cpus != "0-1" || *r.Memory.Limit != 64<<20 {
			t.Errorf("the spec has %+v %+v", r.CPU, r.Memory)
		}
		// The same again changes nothing.
		before = len(b.Did())
		if err := b.UpdateContainerResources(t.Context(), c, &resources{CpusetCpus: "0-1"}); err != nil || len(b.Did()) != before {
			t.Errorf("%v %q", err, b.Did()[before:])
		}
	})
}

// PROPERTIES 4 and 24: berth is killed after each step of an update. The next one has the change in
// effect and reports it; until then it reports what is known to be in effect.
func TestAnUpdateSurvivesAKillAtEachStep(t *testing.T) {
	for _, step := range []string{"update-task", "get-container", "update-container", "commit"} {
		t.Run(step, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.limited(b.pod("p1", ""), true)
				reached := "update-container"
				if step != "commit" {
					reached = step
				}
				release := b.Hold(reached, c)
				done := b.later(c, &resources{MemoryLimitInBytes: 128 << 20})
				if step == "commit" { // the change is in effect, and nobody has recorded that
					b.Refuse("commit", c, errors.New("killed"))
					release()
					synctest.Wait()
				}
				loaded := b.kill()
				<-done
				b.Heal()

				again := start(t, b.World, loaded)
				again.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
				if err := again.Relist(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				again.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 500})
				if _, _, memory := b.asked(c); memory != 128<<20 {
					t.Errorf("the shim was asked for %d bytes of memory", memory)
				}
				// The one after that has nothing to do.
				n, _, _ := b.asked(c)
				third := restart(t, b.World, again.kill())
				time.Sleep(time.Minute)
				third.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 500})
				if m, _, _ := b.asked(c); m != n {
					t.Errorf("a change that is in effect was asked for %d times more", m-n)
				}
			})
		})
	}
}

// PROPERTIES 1 and 3: a shim that hangs in an update delays neither the exit of the container nor
// anything else.
func TestAnUpdateThatHangsDelaysNoExit(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c, other := b.limited(p, true), b.limited(p, true)
		defer b.Hold("update-task", c)()
		done := b.later(c, &resources{CpuQuota: 70000})
		began := time.Now()
		if err := b.UpdateContainerResources(t.Context(), other, &resources{CpuQuota: 80000}); err != nil {
			t.Error(err)
		}
		b.exit(c, 42)
		synctest.Wait()
		b.expect(c, exited, 42, "Error")
		if err := <-done; !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ended") {
			t.Errorf("the update: %v", err)
		}
		if err := b.RemoveContainer(t.Context(), c); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Hour) // the attempt ends, and finds nothing to do
		if lanes := b.Lanes(); len(lanes) != 0 {
			t.Errorf("%v", lanes)
		}
	})
}

// An update whose shim does not answer goes on without its caller, which learns that; one that
// comes meanwhile is merged with it.
func TestAnUpdateGoesOnWithoutItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), true)
		lift := b.Refuse("update-task", c, errdefs.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := b.UpdateContainerResources(ctx, c, &resources{CpuQuota: 70000})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "goes on") || !strings.Contains(err.Error(), "unavailable") {
			t.Errorf("%v", err)
		}
		first := b.later(c, &resources{CpuQuota: 70000}) // a client that asks again
		second := b.later(c, &resources{MemoryLimitInBytes: 128 << 20})
		b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
		lift()
		if err := errors.Join(<-first, <-second); err != nil {
			t.Error(err)
		}
		b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 70000, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 500})
		if _, quota, memory := b.asked(c); quota != 70000 || memory != 128<<20 {
			t.Errorf("the shim was asked for %d and %d", quota, memory)
		}
	})
}

// What the OCI runtime refuses is an error with a code, is not tried again, and leaves what was.
func TestAnUpdateThatIsRefusedChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), true)
		lift := b.Refuse("update-task", c, errdefs.ErrFailedPrecondition)
		if err := b.UpdateContainerResources(t.Context(), c, &resources{MemoryLimitInBytes: 1 << 20}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%v", err)
		}
		before := &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500}
		b.expectResources(c, before)
		lift()
		loaded := b.Records()
		b.stop()
		again := restart(t, b.World, loaded)
		time.Sleep(time.Hour)
		again.expectResources(c, before)
		if n, _, _ := b.asked(c); n != 0 {
			t.Errorf("the shim was asked %d times", n)
		}
	})
}

// A change that waited behind one that the OCI runtime refuses contained it, and was refused with
// it. PROPERTIES 24.
func TestAnUpdateBehindARefusedOneIsCarriedOutWithoutIt(t *testing.T) {
	for _, tried := range []bool{false, true} { // whether it was tried when the others came
		t.Run(fmt.Sprint(tried), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.limited(b.pod("p1", ""), true)
				lift := func() {}
				if !tried {
					lift = b.Refuse("update-task", c, errdefs.ErrUnavailable)
				}
				answer := b.RefuseOnce("update-task", c, errdefs.ErrFailedPrecondition)
				first := b.later(c, &resources{MemoryLimitInBytes: 1 << 20})
				second := b.later(c, &resources{CpuQuota: 70000})
				third := b.later(c, &resources{CpusetCpus: "0-1"})
				lift()
				answer()
				if err := <-first; !errdefs.IsFailedPrecondition(err) {
					t.Errorf("the first: %v", err)
				}
				if err := errors.Join(<-second, <-third); err != nil {
					t.Errorf("those behind it: %v", err)
				}
				want := &resources{CpuPeriod: 100000, CpuQuota: 70000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500, CpusetCpus: "0-1"}
				b.expectResources(c, want)
				if _, quota, memory := b.asked(c); quota != 70000 || memory != 0 {
					t.Errorf("the shim was asked for %d and %d", quota, memory)
				}
				loaded := b.Records()
				b.stop()
				again := restart(t, b.World, loaded)
				time.Sleep(time.Hour)
				again.expectResources(c, want)
			})
		})
	}
}

// However many changes wait, all of them are in effect in the end, each after those before it.
func TestManyUpdatesThatWaitAreCarriedOut(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), true)
		lift := b.Refuse("update-task", c, errdefs.ErrUnavailable)
		var waiting []<-chan error
		for i := range int64(40) {
			waiting = append(waiting, b.later(c, &resources{CpuQuota: 60000 + i}))
		}
		lift()
		for i, done := range waiting {
			if err := <-done; err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 60039, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
	})
}

// An OCI runtime that refuses a change may have set a part of it: crun does not go back by itself.
// What the container had is asked for again, until the shim has answered.
func TestARefusedUpdateThatTookEffectInPartIsTakenBack(t *testing.T) {
	for _, lost := range []bool{false, true} { // whether the shim does not answer when the change is taken back
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.limited(b.pod("p1", ""), true)
				b.RefuseInPart("update-task", c, errdefs.ErrFailedPrecondition)
				if lost {
					b.LoseAnswer("update-task", c)
					b.RefuseInPart("update-task", c, errdefs.ErrFailedPrecondition) // asked again
				}
				change := &resources{MemoryLimitInBytes: 1 << 20, CpuQuota: 70000, CpusetCpus: "0"}
				if err := b.UpdateContainerResources(t.Context(), c, change); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("%v", err)
				}
				b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
				if _, quota, memory := b.asked(c); quota != 50000 || memory != 64<<20 {
					t.Errorf("the container has %d and %d", quota, memory)
				}
			})
		})
	}
}

func TestALowerMemoryLimitIsRefusedWhereMoreIsInUse(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), true)
		for i, change := range []struct {
			memory  int64
			careful bool
		}{{32 << 20, true}, {48 << 20, false}, {40 << 20, true}} {
			if err := b.UpdateContainerResources(t.Context(), c, &resources{MemoryLimitInBytes: change.memory}); err != nil {
				t.Error(err)
			}
			check := b.Process(c).Updates[i].Memory.CheckBeforeUpdate
			if got := check != nil && *check; got != change.careful {
				t.Errorf("to %d: the usage is checked: %v", change.memory, got)
			}
		}
	})
}

// A container that is CREATED starts with what it was updated to, also when berth is killed between
// the record and the specification, and when a start is in flight.
func TestACreatedContainerStartsWithItsUpdate(t *testing.T) {
	starts := map[string]func(t *testing.T, b *bubble, c string) *bubble{
		"updated": func(t *testing.T, b *bubble, c string) *bubble {
			if err := b.UpdateContainerResources(t.Context(), c, &resources{CpuQuota: 70000, OomScoreAdj: 100}); err != nil {
				t.Error(err)
			}
			b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 70000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 100})
			return b
		},
		"killed": func(t *testing.T, b *bubble, c string) *bubble {
			b.Hold("update-container", c)
			done := b.later(c, &resources{CpuQuota: 70000, OomScoreAdj: 100})
			loaded := b.kill()
			<-done
			b.Heal()
			return restart(t, b.World, loaded)
		},
	}
	for name, prepare := range starts {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.limited(b.pod("p1", ""), false)
				b = prepare(t, b, c)
				if err := b.StartContainer(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 70000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 100})
				s, updates := b.Spec(c), b.Process(c).Updates
				if *s.Linux.Resources.CPU.Quota != 70000 || *s.Process.OOMScoreAdj != 100 || len(updates) != 0 {
					t.Errorf("it started with %+v, %d, updated %d times", s.Linux.Resources.CPU, *s.Process.OOMScoreAdj, len(updates))
				}
			})
		})
	}
}

// An update that comes while the container is being started is not lost between the specification
// that the start has read and the task that is not there yet; nor if berth is killed then.
func TestAnUpdateDuringAStartIsNotLost(t *testing.T) {
	for _, killed := range []bool{false, true} {
		inBubble(t, func(t *testing.T, b *bubble) {
			c := b.limited(b.pod("p1", ""), false)
			release := b.HoldAnswer("start-task", c)
			go func() { _ = b.StartContainer(t.Context(), c) }()
			synctest.Wait()
			done := b.later(c, &resources{CpuQuota: 70000})
			if killed {
				loaded := b.kill() // the start took effect all the same
				<-done
				b.Heal()
				b = restart(t, b.World, loaded)
			} else {
				release()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Minute)
			b.expect(c, running, 0, "")
			b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 70000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
			if n, quota, _ := b.asked(c); n != 1 || quota != 70000 {
				t.Errorf("killed %v: the shim was asked %d times, last for %d", killed, n, quota)
			}
		})
	}
}

// A hugepage limit that this host cannot keep is left out of an update before the start, and is not
// reported as if it were kept.
func TestAHugepageLimitThatIsLeftOutIsNotReported(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), false)
		if err := b.UpdateContainerResources(t.Context(), c, &resources{
			CpuQuota:       60000,
			HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}},
		}); err != nil {
			t.Fatal(err)
		}
		b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 60000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
	})
}

// PROPERTIES 22: what cannot be changed is refused by name, and nothing is recorded.
func TestUpdatesThatCannotBe(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		c, ends, goes := b.limited(p, true), b.limited(p, true), b.limited(p, true)
		b.exit(ends, 0)
		synctest.Wait()
		lift := b.Refuse("delete-task", goes, errors.New("busy"))
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = b.RemoveContainer(ctx, goes)
		}()
		time.Sleep(time.Minute)
		for _, tt := range []struct {
			name  string
			id    string
			r     *resources
			is    func(error) bool
			words string
		}{
			{"absent", "feedbeef", &resources{}, errdefs.IsNotFound, "feedbeef"},
			{"no ID", "", &resources{}, errdefs.IsInvalidArgument, "no ID"},
			{"a sandbox", p, &resources{}, errdefs.IsNotFound, "container"},
			{"ended", ends, &resources{CpuQuota: 1000}, errdefs.IsFailedPrecondition, "EXITED"},
			{"being removed", goes, &resources{CpuQuota: 1000}, errdefs.IsFailedPrecondition, "removed"},
			{"a negative period", c, &resources{CpuPeriod: -1}, errdefs.IsInvalidArgument, "linux.cpu_period -1"},
			{"a quota below none", c, &resources{CpuQuota: -2}, errdefs.IsInvalidArgument, "linux.cpu_quota -2"},
			{"a negative memory limit", c, &resources{MemoryLimitInBytes: -1}, errdefs.IsInvalidArgument, "memory_limit_in_bytes -1"},
			{"less swap than memory", c, &resources{MemorySwapLimitInBytes: 1 << 20}, errdefs.IsInvalidArgument, "swap"},
			{"another OOM score than there is", c, &resources{OomScoreAdj: 1001}, errdefs.IsInvalidArgument, "1001"},
			{"hugepages", c, &resources{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}}}, errdefs.IsFailedPrecondition, "hugepage_limits"},
			{"too much", c, &resources{Unified: map[string]string{"io.max": strings.Repeat("x", 1<<20)}}, errdefs.IsInvalidArgument, "bytes"},
		} {
			if err := b.UpdateContainerResources(t.Context(), tt.id, tt.r); !tt.is(err) || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
		if u := b.Unit(c); u.Now().Resources != nil {
			t.Errorf("recorded: %+v", u.Now().Resources)
		}
		// The kubelet sends the OOM score and hugepage limits of 0 with each update.
		if err := b.UpdateContainerResources(t.Context(), c, &resources{
			CpuQuota:       60000,
			OomScoreAdj:    900,
			HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB"}},
		}); err != nil {
			t.Error(err)
		}
		b.expectResources(c, &resources{CpuPeriod: 100000, CpuQuota: 60000, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 500})
		lift()
	})
}

// The disk is full: an update that cannot be recorded is not carried out.
func TestAnUpdateThatCannotBeRecordedIsNotCarriedOut(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), true)
		lift := b.Refuse("commit", c, errFull)
		if err := b.UpdateContainerResources(t.Context(), c, &resources{CpuQuota: 70000}); err == nil || !strings.Contains(err.Error(), "no space") {
			t.Errorf("%v", err)
		}
		if n, _, _ := b.asked(c); n != 0 {
			t.Error("the shim was asked")
		}
		lift()
	})
}

// What the kubelet says of a pod's resources is on record, also for the next berth.
func TestThePodsResourcesAreRecorded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.pod("p1", "")
		if err := b.UpdatePodSandboxResources(t.Context(), p, &resources{MemoryLimitInBytes: 7}, &resources{CpuQuota: 70000}); err != nil {
			t.Fatal(err)
		}
		if err := b.UpdatePodSandboxResources(t.Context(), p, nil, &resources{CpuQuota: 80000}); err != nil {
			t.Fatal(err)
		}
		loaded := b.Records()
		b.stop()
		again := restart(t, b.World, loaded)
		st, err := again.PodSandboxStatus(t.Context(), p, true)
		if err != nil {
			t.Fatal(err)
		}
		compact := strings.ReplaceAll(st.GetInfo()["info"], " ", "")
		for _, want := range []string{`"memoryLimitInBytes":"7"`, `"cpuQuota":"80000"`} {
			if !strings.Contains(compact, want) {
				t.Errorf("%s is not in %s", want, compact)
			}
		}
		target, err := again.Target(p)
		if err != nil || target.PodOverhead.GetMemoryLimitInBytes() != 7 || target.PodResources.GetCpuQuota() != 80000 {
			t.Errorf("other rooms are shown %v and %v, %v", target.PodOverhead, target.PodResources, err)
		}
		if err := again.StopPodSandbox(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := again.UpdatePodSandboxResources(t.Context(), p, nil, &resources{}); !errdefs.IsFailedPrecondition(err) {
			t.Error(err)
		}
		if err := again.UpdatePodSandboxResources(t.Context(), "feedbeef", nil, nil); !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// A record that cannot be read says so, and is not updated.
func TestAnUpdateOfADamagedRecordIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, world.Free(), state.Loaded{Damaged: []state.Damaged{{Kind: state.KindContainer, ID: "c1", Err: errors.New("unreadable")}}})
		if err := b.UpdateContainerResources(t.Context(), "c1", &resources{}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "record") {
			t.Error(err)
		}
	})
}
