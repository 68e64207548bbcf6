// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"math"
	"testing"
	"time"
)

func at(seconds float64, used uint64) sample {
	return sample{time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second))), used}
}

func TestRateOfTwoSamples(t *testing.T) {
	for _, tt := range []struct {
		name string
		a, b sample
		want uint64
		ok   bool
	}{
		{"one core", at(0, 0), at(10, 10e9), 1e9, true},
		{"half a core", at(0, 5e9), at(2, 6e9), 5e8, true},
		{"idle", at(0, 7), at(10, 7), 0, true},
		{"large counters", at(0, math.MaxUint64-4e9), at(1, math.MaxUint64), 4e9, true},
		{"more than can be said", at(0, 0), at(0.000000001, math.MaxUint64), math.MaxUint64, true},
		{"no first sample", sample{}, at(10, 10e9), 0, false},
		{"the same instant", at(5, 1), at(5, 2), 0, false},
		{"the clock went back", at(5, 1), at(4, 2), 0, false},
		{"the counter went back", at(0, 9), at(10, 8), 0, false},
	} {
		got, ok := nanoCores(tt.a, tt.b)
		if got != tt.want || ok != tt.ok {
			t.Errorf("%s: %d %v, want %d %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

func TestRatesOfCallersThatAskAtTheSameTimeAgree(t *testing.T) {
	type step struct {
		sample
		want uint64
		ok   bool
	}
	var w window
	for n, s := range []step{
		{at(0, 0), 0, false},
		{at(0.1, 1e8), 0, false}, // too early for a rate, and not kept
		{at(10, 10e9), 1e9, true},
		{at(10.1, 101e8), 1e9, true}, // over ten seconds, not over a tenth
		{at(10.2, 102e8), 1e9, true},
		{at(20, 10e9+2e9), 2e8, true},
		{at(30, 1e9), 0, false}, // the cgroup was made anew
		{at(40, 6e9), 5e8, true},
	} {
		if got, ok := w.add(s.sample); got != s.want || ok != s.ok {
			t.Errorf("step %d: %d %v, want %d %v", n, got, ok, s.want, s.ok)
		}
	}
}

func TestRatesOfWhatEndedAreForgotten(t *testing.T) {
	r := &rates{windows: map[string]*window{}}
	r.add("a", at(0, 0))
	r.add("b", at(0, 0))
	if r.stale("a", at(0, 0).at) || !r.stale("a", at(1, 0).at) || !r.stale("c", at(0, 0).at) {
		t.Error("stale is wrong about the age of the last sample")
	}
	r.keep(map[string]bool{"b": true})
	if len(r.windows) != 1 || r.windows["b"] == nil {
		t.Errorf("%v", r.windows)
	}
}
