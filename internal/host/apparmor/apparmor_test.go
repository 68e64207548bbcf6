// SPDX-License-Identifier: Apache-2.0

package apparmor

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// PROPERTIES 53: a profile that was loaded may be removed by somebody else, and is loaded again
// with the next container. Whoever asks at the same time shares the work.
func TestTheDefaultAppArmorProfileIsLoadedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		done := make(chan error)
		a := &AppArmor{load: func(string) error {
			runs.Add(1)
			return <-done
		}}
		asked := make(chan error, 2)
		for range 2 {
			go func() { asked <- a.Ensure() }()
		}
		synctest.Wait()
		done <- errors.New("no parser")
		for range 2 {
			if err := <-asked; err == nil {
				t.Error("nobody loaded it")
			}
		}
		if runs.Load() != 1 || !strings.Contains(a.Warning(), "no parser") {
			t.Errorf("%d runs; %q", runs.Load(), a.Warning())
		}
		go func() { asked <- a.Ensure() }()
		synctest.Wait()
		done <- nil
		if err := <-asked; err != nil || runs.Load() != 2 || a.Warning() != "" {
			t.Errorf("%v after %d runs; %q", err, runs.Load(), a.Warning())
		}
		if err := a.Ensure(); err == nil { // apparmor_parser hangs
			t.Error("it was waited for without an answer")
		}
		done <- nil
	})
}
