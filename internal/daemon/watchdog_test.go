// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// systemd kills a berth whose locks are held for ever, and no other one.
func TestAStuckBerthIsNotReportedAsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		lock := make(chan struct{}, 1) // synctest sees a wait for it, and none for a mutex
		var times atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			feedWhile(ctx, time.Minute, func() { lock <- struct{}{}; <-lock }, func() { times.Add(1) })
		}()
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if fed := times.Load(); fed != 41 {
			t.Errorf("fed %d times in ten minutes", fed)
		}
		lock <- struct{}{}
		time.Sleep(time.Hour)
		synctest.Wait()
		if fed := times.Load(); fed > 42 {
			t.Errorf("fed %d times, the last ones while it was stuck", fed)
		}
		<-lock
		was := times.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if fed := times.Load(); fed < was+4 {
			t.Errorf("fed %d times in the minute after", fed-was)
		}
		cancel()
		<-ended
	})
}
