// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PROPERTIES 12, 52: on a disk that did not answer, each call left a goroutine that outlived its
// deadline: 20,000 calls held 243 MB. One call of each unit and each creation wait for the disk
// now, and nothing that was asked for is lost.
func TestCallsToADiskThatDoesNotAnswerEndWithTheirDeadlines(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		pod := b.pod("p1", "")
		c, stays := b.limited(pod, true), b.limited(pod, true)
		release := b.Hold("commit", "")
		calls := map[string]func(ctx context.Context) error{
			"stop pod":   func(ctx context.Context) error { return b.StopPodSandbox(ctx, pod) },
			"remove pod": func(ctx context.Context) error { return b.RemovePodSandbox(ctx, pod) },
			"remove":     func(ctx context.Context) error { return b.RemoveContainer(ctx, c) },
			"stop":       func(ctx context.Context) error { return b.StopContainer(ctx, c, 10) },
			"start":      func(ctx context.Context) error { return b.StartContainer(ctx, c) },
			"update": func(ctx context.Context) error {
				return b.UpdateContainerResources(ctx, stays, &resources{CpuPeriod: 100000, CpuQuota: 20000})
			},
			"update pod": func(ctx context.Context) error {
				return b.UpdatePodSandboxResources(ctx, pod, nil, &resources{CpuPeriod: 100000, CpuQuota: 20000})
			},
			"run pod": func(ctx context.Context) error {
				_, err := b.RunPodSandbox(ctx, config("p2"), "")
				return err
			},
			"create": func(ctx context.Context) error {
				_, err := b.CreateContainer(ctx, pod, ctr("another"))
				return err
			},
		}
		synctest.Wait()
		before := runtime.NumGoroutine()
		for range 200 {
			for name, call := range calls {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					began := time.Now()
					if err := call(ctx); err == nil && time.Since(began) < 100*time.Millisecond && name != "start" { // it runs
						t.Errorf("%s succeeds, which is not on the disk", name)
					}
				}()
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		// Of each of the two containers and of the two pods one call, with what it has begun.
		if left := runtime.NumGoroutine() - before; left > 40 {
			t.Errorf("%d goroutines are left of %d calls", left, 200*len(calls))
		}
		release()
		if err := b.RemovePodSandbox(t.Context(), pod); err != nil {
			t.Error(err)
		}
		if len(b.Records().Sandboxes) != 1 {
			t.Errorf("on record are %v", b.Records().Sandboxes)
		}
	})
}

// PROPERTIES 52: while a disk does not answer, an end is known and not visible: CRI has RUNNING,
// and Ended names it with what is known.
func TestAnEndThatIsNotOnRecordIsKnown(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		pod := b.pod("p1", "")
		c := b.run(pod, "c")
		if ended := b.Ended(); len(ended) != 0 {
			t.Errorf("before anything has ended: %v", ended)
		}
		release := b.Hold("commit", "")
		b.exit(c, 42)
		synctest.Wait()
		if ended := b.Ended(); len(ended) != 1 || ended[c].Code != 42 || !ended[c].Measured {
			t.Errorf("ended, and not on record, are %v", ended)
		}
		b.expect(c, runtimeapi.ContainerState_CONTAINER_RUNNING, 0, "") // it is not durable
		release()
		synctest.Wait()
		time.Sleep(time.Second)
		if ended := b.Ended(); len(ended) != 0 {
			t.Errorf("after the disk answers: %v", ended)
		}
		b.expect(c, runtimeapi.ContainerState_CONTAINER_EXITED, 42, "Error")
	})
}

// PROPERTIES 12: calls without a deadline are bounded, too.
func TestTooManyCallsForOneUnitAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.limited(b.pod("p1", ""), true)
		release := b.Hold("commit", c)
		results := make(chan error, 200)
		for i := range 200 {
			go func() {
				results <- b.UpdateContainerResources(t.Context(), c, &resources{CpuPeriod: 100000, CpuQuota: int64(20000 + i)})
			}()
		}
		synctest.Wait()
		if n := len(results); n != 200-65 {
			t.Errorf("%d calls have returned", n)
		}
		release()
		refused := 0
		for range 200 {
			if err := <-results; errdefs.IsResourceExhausted(err) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		if refused != 200-65 {
			t.Errorf("%d calls were refused", refused)
		}
	})
}

// PROPERTIES 12, 52: on a disk that does not answer, one commit of each unit outlives its call, and
// nothing else does: the call that makes it cannot be told what became of it. So what waits is
// bounded by what is on record, to which nothing is added meanwhile but the creations that are
// bounded by themselves.
func TestOneCommitOfEachUnitOutlivesItsCall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		const units, callsEach = 40, 20
		pod, containers := b.pod("p1", ""), []string{}
		for i := range units {
			cfg := ctr(fmt.Sprint("c", i))
			cfg.Linux = &runtimeapi.LinuxContainerConfig{Resources: &resources{CpuPeriod: 100000, CpuQuota: 20000}}
			containers = append(containers, b.create(pod, cfg))
		}
		release := b.Hold("commit", "")
		synctest.Wait()
		before := runtime.NumGoroutine()
		returned := make(chan struct{}, units*callsEach)
		for _, c := range containers {
			for i := range callsEach {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					_ = b.UpdateContainerResources(ctx, c, &resources{CpuPeriod: 100000, CpuQuota: int64(30000 + i)})
					returned <- struct{}{}
				}()
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(returned); n != units*(callsEach-1) {
			t.Errorf("%d of %d calls have returned", n, units*callsEach)
		}
		if left := runtime.NumGoroutine() - before; left > units+10 { // the audit is at work beside them
			t.Errorf("%d goroutines are left, of %d units", left, units)
		}
		release()
		synctest.Wait()
		if n := len(returned); n != units*callsEach {
			t.Errorf("%d of %d calls have returned, and the disk answers", n, units*callsEach)
		}
	})
}

// PROPERTIES 12: creations are bounded, which outlive their calls.
func TestTooManyCreationsAreRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		release := b.Hold("commit", "")
		count := map[bool]int{}
		for i := range 1100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
			_, err := b.RunPodSandbox(ctx, config(fmt.Sprint("p", i)), "")
			cancel()
			if err == nil {
				t.Fatal("a pod is there without a record")
			}
			count[errdefs.IsResourceExhausted(err)]++
		}
		if count[false] != 1024 {
			t.Errorf("%v were refused or begun", count)
		}
		release()
		synctest.Wait()
		time.Sleep(time.Minute)
		if _, err := b.RunPodSandbox(t.Context(), config("last"), ""); err != nil {
			t.Error(err)
		}
		if n := len(b.Records().Sandboxes); n != 1025 {
			t.Errorf("%d pods are on record", n)
		}
	})
}
