// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"errors"
	"testing"

	"berth/internal/base/clock"
)

// What is known of an end, from facts, hints, and what berth did to the process.
func TestWhatIsKnownOfAnEnd(t *testing.T) {
	gaveUp := func(e *Evidence) { e.GiveUp(errors.New("no such program")); e.GiveUp(errors.New("too late")) }
	add := func(f Fact) func(*Evidence) { return func(e *Evidence) { e.Add(f, false) } }
	hint := func(f Fact) func(*Evidence) { return func(e *Evidence) { e.Add(f, true) } }
	notStarted := NotStarted("c1", t0, "no such program")
	ran := func(e *Evidence) { e.MayHaveRun(true) }
	killed := measured(137, Kernel, t0)
	killed.Message = "its start failed, its program may have begun, and berth has killed it: no such program"
	for _, tc := range []struct {
		name string
		did  []func(*Evidence)
		want Fact
	}{
		{"nothing", nil, Fact{}},
		{"a hint alone", []func(*Evidence){hint(measured(42, Stream, t0))}, Fact{}},
		{"a fact", []func(*Evidence){add(measured(42, Kernel, t0))}, measured(42, Kernel, t0)},
		{"a hint supplies the code that the kernel lacks",
			[]func(*Evidence){hint(measured(42, Stream, t0.Add(1))), add(unmeasured(Kernel, t0))}, measured(42, Stream, t0)},
		{"a hint does not replace the kernel's code",
			[]func(*Evidence){hint(measured(1, Stream, t0)), add(measured(42, Kernel, t0))}, measured(42, Kernel, t0)},
		{"a hint replaces the code of the first thread",
			[]func(*Evidence){hint(measured(129, Stream, t0.Add(1))), add(first(0, t0))}, measured(129, Stream, t0)},
		{"a hint without a code says nothing",
			[]func(*Evidence){hint(unmeasured(Stream, t0)), add(unmeasured(Kernel, t0))}, unmeasured(Kernel, t0)},
		{"a start that was given up is not an end by itself", []func(*Evidence){gaveUp}, Fact{}},
		{"the process of a start that was given up was killed", []func(*Evidence){gaveUp, add(measured(137, Kernel, t0))}, notStarted},
		{"the program had run when berth killed it",
			[]func(*Evidence){gaveUp, ran, func(e *Evidence) { e.Kills++ }, add(measured(137, Kernel, t0))}, killed},
		{"the program had run when somebody else killed it",
			[]func(*Evidence){gaveUp, ran, add(measured(137, Kernel, t0))}, measured(137, Kernel, t0)},
		{"its shim knew at last that the program had not run",
			[]func(*Evidence){gaveUp, ran, func(e *Evidence) { e.MayHaveRun(false) }, add(measured(137, Kernel, t0))}, notStarted},
		{"nobody knows how it ended", []func(*Evidence){gaveUp, add(unmeasured(Kernel, t0))}, notStarted},
		{"the program ran, and ended by itself", []func(*Evidence){gaveUp, add(measured(42, Kernel, t0))}, measured(42, Kernel, t0)},
		{"the program may have run, and nobody can be asked",
			[]func(*Evidence){gaveUp, func(e *Evidence) { e.EndedAlone() }, add(unmeasured(Audit, t0))}, unmeasured(Audit, t0)},
		{"berth has killed it when it had run, and nobody can be asked",
			[]func(*Evidence){gaveUp, ran, func(e *Evidence) { e.Kills++; e.EndedAlone() }, add(unmeasured(Audit, t0))}, unmeasured(Audit, t0)},
		{"berth has killed it, and nobody can be asked",
			[]func(*Evidence){gaveUp, func(e *Evidence) { e.Kills++; e.EndedAlone() }, add(unmeasured(Audit, t0))}, notStarted},
	} {
		var e Evidence
		for _, do := range tc.did {
			do(&e)
		}
		if got := e.Known(); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// PROPERTIES 10: a kill of berth's own explains every end, and its stop signal any but by SIGKILL,
// which the OOM killer sends, too.
func TestASignalOfOursExplainsAnEnd(t *testing.T) {
	kill, end := measured(137, Kernel, clock.Instant{}), measured(143, Kernel, clock.Instant{})
	for _, tc := range []struct {
		kills, stops int
		f            Fact
		want         bool
	}{
		{0, 0, kill, false},
		{0, 0, end, false},
		{1, 0, kill, true},
		{1, 0, end, true},
		{0, 1, kill, false},
		{0, 1, end, true},
		{0, 1, unmeasured(Kernel, clock.Instant{}), true},
	} {
		if e := (&Evidence{Kills: tc.kills, Stops: tc.stops}); e.Explains(tc.f) != tc.want {
			t.Errorf("%d kills and %d stop signals before %v: %v", tc.kills, tc.stops, tc.f, !tc.want)
		}
	}
}

func TestEvidenceIsMeasuredByAnyWitness(t *testing.T) {
	for _, hint := range []bool{false, true} {
		var e Evidence
		if !e.Add(unmeasured(Kernel, t0), hint) || e.Measured() {
			t.Error("an end without a code is measured, or not new")
		}
		if !e.Add(measured(42, Task, t0), hint) || !e.Measured() {
			t.Error("a code is not measured, or not new")
		}
		if e.Add(measured(42, Task, t0), hint) {
			t.Error("the same again is new")
		}
	}
}

// PROPERTIES 49: two measured codes that differ are told, whoever spoke first, and of those the one
// that does not stand.
func TestTwoCodesThatDifferAreTold(t *testing.T) {
	late := t0.Add(1)
	for _, tc := range []struct {
		name        string
		fact, other Fact // and a hint
		want        Fact
	}{
		{"one code", measured(42, Kernel, t0), measured(42, Task, late), Fact{}},
		{"the first thread's and another", first(0, t0), measured(129, Task, late), first(0, t0)},
		{"two of one rank", measured(42, Kernel, t0), measured(1, Task, late), measured(1, Task, late)},
		{"one is not measured", measured(42, Kernel, t0), unmeasured(Stream, late), Fact{}},
		{"a start is not a code", measured(137, Kernel, t0), NotStarted("c1", late, "no such program"), Fact{}},
	} {
		for _, hintFirst := range []bool{false, true} {
			var e Evidence
			if hintFirst {
				e.Add(tc.other, true)
			}
			e.Add(tc.fact, false)
			if !hintFirst {
				if more := e.Add(tc.other, true); !more {
					t.Errorf("%s: nothing new", tc.name)
				}
			}
			if other, differ := e.Contradiction(); other != tc.want || differ != !tc.want.Zero() {
				t.Errorf("%s, the hint first %v: %+v, %v", tc.name, hintFirst, other, differ)
			}
		}
	}
}
