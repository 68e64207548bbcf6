// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"testing"
	"testing/synctest"
	"time"
)

// PROPERTIES 38: one start at a time is young here. The first hangs, and the next begins all the same, after a while that
// does not depend on it; one for which nobody waits any more is not in the way of those behind it.
func TestStartsWaitForYoungOnesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &starts{make(chan struct{}, 1), 250 * time.Millisecond}
		service := &Service{stopping: make(chan struct{})}
		enter := func(unwanted chan struct{}) (func(), error) {
			return s.enter(t.Context(), &process{s: service, key: Key{Container: "c"}, unwanted: unwanted})
		}
		began := time.Now()
		hangs, err := enter(nil)
		if err != nil || time.Since(began) != 0 {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		refused := make(chan error)
		go func() {
			_, err := enter(gone)
			refused <- err
		}()
		synctest.Wait()
		close(gone)
		if err := <-refused; err == nil || time.Since(began) != 0 {
			t.Errorf("a start that nobody wants begins, or waits: %v", err)
		}
		second, err := enter(nil)
		if took := time.Since(began); err != nil || took != 250*time.Millisecond {
			t.Errorf("the second begins after %s: %v", took, err)
		}
		hangs() // it gives nothing back any more
		go func() {
			time.Sleep(10 * time.Millisecond)
			second()
		}()
		third, err := enter(nil)
		if took := time.Since(began); err != nil || took != 260*time.Millisecond {
			t.Errorf("the third begins after %s: %v", took, err)
		}
		close(service.stopping)
		if _, err := enter(nil); err == nil {
			t.Error("a start begins when berth stops")
		}
		third()
		if len(s.slots) != 0 {
			t.Error("a slot is not given back")
		}
	})
}
