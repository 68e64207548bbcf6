// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However many calls come while something is measured, they cost one measurement more, and each gets figures
// that were measured after it was made.
func TestCallsShareAMeasurementThatBeginsAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := 0
		r := rounds[int]{measure: func(context.Context) (int, error) {
			began++
			n := began
			time.Sleep(time.Second)
			return n, nil
		}}
		var calls sync.WaitGroup
		ask := func(want int) {
			calls.Go(func() {
				if n, err := r.get(t.Context()); n != want || err != nil {
					t.Errorf("got measurement %d and not %d: %v", n, want, err)
				}
			})
		}
		ask(1)
		synctest.Wait()
		for range 100 {
			ask(2)
		}
		time.Sleep(1500 * time.Millisecond) // within the second
		ask(3)
		calls.Wait()
		ask(4)
		calls.Wait()
		if began != 4 {
			t.Errorf("%d measurements", began)
		}
	})
}

// A measurement that nobody waits for ends, whether it has begun or not, and keeps nobody else from one.
func TestAMeasurementThatNobodyWaitsForEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began, cut atomic.Int32
		r := rounds[int]{measure: func(ctx context.Context) (int, error) {
			began.Add(1)
			select {
			case <-ctx.Done():
				cut.Add(1)
				return 0, ctx.Err()
			case <-time.After(time.Second):
				return 1, nil
			}
		}}
		var calls sync.WaitGroup
		var giveUp []context.CancelFunc
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			giveUp = append(giveUp, cancel)
			calls.Go(func() {
				if _, err := r.get(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("a call that was given up returns %v", err)
				}
			})
			synctest.Wait()
		}
		for _, cancel := range giveUp[1:] { // what they wait for has not begun
			cancel()
		}
		synctest.Wait()
		giveUp[0]()
		calls.Wait()
		if n, err := r.get(t.Context()); n != 1 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		if began.Load() != 2 || cut.Load() != 1 {
			t.Errorf("%d have begun, and %d were cut off", began.Load(), cut.Load())
		}
	})
}

// PROPERTIES 3: a measurement that hangs holds up those who came before it, and a later one for five seconds.
func TestAMeasurementThatHangsHoldsUpNoLaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		well := make(chan struct{})
		first := true
		r := rounds[int]{measure: func(context.Context) (int, error) {
			if first {
				first = false
				<-well
			}
			return 1, nil
		}}
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = r.get(t.Context()) })
		synctest.Wait()
		for _, want := range []time.Duration{roundPatience, 0} {
			began := time.Now()
			if _, err := r.get(t.Context()); err != nil || time.Since(began) != want {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		}
		close(well)
		calls.Wait()
	})
}

// A panic is the error of those who wait, and the next measurement is another one.
func TestAPanicIsAnError(t *testing.T) {
	broken := true
	r := rounds[int]{measure: func(context.Context) (int, error) {
		if broken {
			panic("no figures")
		}
		return 1, nil
	}}
	if _, err := r.get(t.Context()); err == nil || !strings.Contains(err.Error(), "no figures") {
		t.Errorf("got %v", err)
	}
	broken = false
	if n, err := r.get(t.Context()); n != 1 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}
