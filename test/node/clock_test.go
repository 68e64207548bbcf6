// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// What takes too long is blamed on berth, unless the machine was held up for so long that it may
// have been the machine.
func TestWhatTheMachineHeldUpIsNotBlamed(t *testing.T) {
	began := time.Now()
	at := began.Add
	between := func(from, to time.Duration) Span { return Span{From: at(from), To: at(to)} }
	for _, tt := range []struct {
		name         string
		stalls       []Span
		took         Span
		late, blamed int
	}{
		{"in time", nil, between(0, 100), 0, 0},
		{"late on a free machine", nil, between(0, 101), 1, 1},
		{"late by what the machine was held up", []Span{between(10, 20)}, between(0, 110), 1, 0},
		{"later than by that", []Span{between(10, 20)}, between(0, 111), 1, 1},
		{"held up before and after", []Span{between(-50, 5), between(106, 200)}, between(0, 111), 1, 1},
		{"held up twice at a time", []Span{between(15, 25), between(10, 20)}, between(0, 116), 1, 1},
		{"held up twice, and again", []Span{between(40, 60), between(10, 20)}, between(0, 130), 1, 0},
		{"held up most of the time", []Span{between(0, 101)}, between(0, 202), 1, 0},
		{"late because it began late", nil, Span{From: at(0), Free: at(50), To: at(150)}, 1, 0},
		{"later than that", nil, Span{From: at(0), Free: at(50), To: at(151)}, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &clock{stalls: tt.stalls}
			if late, blamed := c.judge([]Span{tt.took}, 100); late != tt.late || blamed != tt.blamed {
				t.Errorf("%d late, %d blamed, want %d and %d", late, blamed, tt.late, tt.blamed)
			}
		})
	}
}

// A clock on a free machine does not stand still, and leaves no file.
func TestAClockOnAFreeMachineGoesOn(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c, err := startClock(dir)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := c.close(); err != nil {
			t.Fatal(err)
		}
		if len(c.stalls) > 0 {
			t.Errorf("it stood still: %v", c.stalls)
		}
	})
	if err := os.Remove(dir); err != nil { // it is empty
		t.Error(err)
	}
}
