// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTheFirstSubscriberGetsWhatWasPublishedBefore(t *testing.T) {
	f := New(Config{})
	for _, what := range life[:3] {
		publish(f, "p", "a", what)
	}
	publish(f, "p", "b", created)
	equal(t, drain(t, f.Subscribe()), "a:X", "b:C")
}

func TestANewSubscriberGetsTheLastKeepAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{Keep: time.Minute})
		kubelet := f.Subscribe()
		read := func() { waitIn(t, kubelet) }
		publish(f, "p", "old", stopped)
		read()
		time.Sleep(time.Minute + time.Minute/grain + 1)
		publish(f, "p", "new", stopped)
		read()
		s := f.Subscribe()
		equal(t, drain(t, s), "new:X")
		publish(f, "p", "live", created)
		equal(t, drain(t, s), "live:C")
		read()
		// A replay does not make an event younger.
		waitIn(t, s)
		time.Sleep(time.Minute + time.Minute/grain + 1)
		equal(t, drain(t, f.Subscribe()))
	})
}

func TestANegativeKeepReplaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{Keep: -1})
		kubelet := f.Subscribe()
		publish(f, "p", "a", stopped)
		waitIn(t, kubelet)
		time.Sleep(time.Nanosecond)
		equal(t, drain(t, f.Subscribe()))
		publish(f, "p", "b", stopped) // nobody has taken it yet
		equal(t, drain(t, f.Subscribe()), "b:X")
	})
}
