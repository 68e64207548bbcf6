// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/base/retry"
)

func TestTheFirstAttemptIsAtOnceAndEachWaitIsTwiceTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at, waits []time.Duration
		for wait := range retry.Doubling(t.Context().Done(), time.Second, 3*time.Second) {
			at, waits = append(at, time.Since(began)), append(waits, wait)
			if len(at) == 5 {
				break
			}
		}
		const s = time.Second
		if want := []time.Duration{0, s, 3 * s, 6 * s, 9 * s}; !slices.Equal(at, want) {
			t.Errorf("attempts at %v, want %v", at, want)
		}
		if want := []time.Duration{s, 2 * s, 3 * s, 3 * s, 3 * s}; !slices.Equal(waits, want) {
			t.Errorf("the loop is given the waits %v, want %v", waits, want)
		}
	})
}

func TestTheLoopEndsWhenDoneIsClosedDuringAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		began, attempts := time.Now(), 0
		for range retry.Doubling(ctx.Done(), time.Second, time.Minute) {
			attempts++
		}
		if took := time.Since(began); attempts != 3 || took != 4*time.Second {
			t.Errorf("%d attempts in %s, want 3 in 4s", attempts, took)
		}
	})
}

// Whoever gives up at once still has had an attempt.
func TestThereIsAnAttemptAlthoughDoneIsClosed(t *testing.T) {
	done := make(chan struct{})
	close(done)
	attempts := 0
	for range retry.Doubling(done, time.Hour, time.Hour) {
		attempts++
	}
	if attempts != 1 {
		t.Errorf("%d attempts, want 1", attempts)
	}
}

func TestSleepSaysWhetherItSleptInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !retry.Sleep(nil, time.Second) || time.Since(began) != time.Second {
			t.Errorf("it slept for %s, want 1s", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if retry.Sleep(ctx.Done(), time.Minute) || time.Since(began) != 2*time.Second {
			t.Errorf("it was called off after %s, want 1s", time.Since(began)-time.Second)
		}
	})
}
