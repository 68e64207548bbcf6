// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"math/rand/v2"
	"testing"
	"time"

	"berth/internal/base/clock"
)

var t0 = clock.Stamped(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))

func measured(code uint32, o Origin, at clock.Instant) Fact {
	return Fact{ID: "c1", Code: code, Measured: true, Origin: o, At: at}
}

// first is what a pidfd says: the code of the first thread.
func first(code uint32, at clock.Instant) Fact {
	return Fact{ID: "c1", Code: code, Measured: true, FirstThread: true, Origin: Kernel, At: at}
}

func unmeasured(o Origin, at clock.Instant) Fact { return Fact{ID: "c1", Origin: o, At: at} }

func TestMerge(t *testing.T) {
	t1 := t0.Add(time.Second)
	tests := []struct {
		name       string
		have, next Fact
		want       Fact
		more       bool
	}{
		{"the first report stands", Fact{}, measured(42, Stream, t0), measured(42, Stream, t0), true},
		{"the zero fact changes nothing", measured(42, Stream, t0), Fact{}, measured(42, Stream, t0), false},
		{"the first measured code stands", measured(42, Task, t0), measured(137, Kernel, t1), measured(42, Task, t0), false},
		{"a measured code replaces an unknown one, the instant stays", unmeasured(Audit, t0), measured(42, Kernel, t1), measured(42, Kernel, t0), true},
		{"an unknown code does not replace a measured one", measured(0, Kernel, t0), unmeasured(Audit, t1), measured(0, Kernel, t0), false},
		{"an unknown code does not replace an unknown one", unmeasured(Audit, t0), unmeasured(Kernel, t1), unmeasured(Audit, t0), false},
		{"the process's code replaces its first thread's, the instant stays", first(0, t0), measured(129, Stream, t1), measured(129, Stream, t0), true},
		{"the first thread's code does not replace the process's", measured(129, Task, t1), first(0, t0), measured(129, Task, t1), false},
		{"the first thread's code replaces an unknown one", unmeasured(Audit, t0), first(0, t1), first(0, t0), true},
		{"the first thread's code is confirmed", first(0, t0), measured(0, Stream, t1), measured(0, Kernel, t0), true},
		{"a start that failed replaces no code", first(1, t0), NotStarted("c1", t1, "no such file"), first(1, t0), false},
		{"no code replaces a start that failed", NotStarted("c1", t0, "no such file"), first(137, t1), NotStarted("c1", t0, "no such file"), false},
		{"an instant that is lacking is filled in", unmeasured(Audit, clock.Instant{}), unmeasured(Kernel, t1), unmeasured(Audit, t1), true},
		{"a fact about another ID changes nothing", measured(1, Task, t0), Fact{ID: "c2", Code: 2, Measured: true, Origin: Kernel}, measured(1, Task, t0), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, more := Merge(tt.have, tt.next)
			if got != tt.want || more != tt.more {
				t.Fatalf("Merge(%v, %v)\n got %+v, %v\nwant %+v, %v", tt.have, tt.next, got, more, tt.want, tt.more)
			}
		})
	}
}

func TestOOMStays(t *testing.T) {
	f := measured(137, Kernel, t0)
	f.OOM = true
	got, _ := Merge(f, measured(137, Task, t0))
	if !got.OOM || got.Reason() != ReasonOOMKilled {
		t.Fatalf("got %+v", got)
	}
}

func TestReasons(t *testing.T) {
	tests := []struct {
		f      Fact
		code   uint32
		reason string
	}{
		{measured(0, Kernel, t0), 0, ReasonCompleted},
		{measured(42, Kernel, t0), 42, ReasonError},
		{measured(137, Kernel, t0), 137, ReasonError},
		{Fact{ID: "c1", Code: 137, Measured: true, Origin: Kernel, OOM: true}, 137, ReasonOOMKilled},
		{unmeasured(Audit, t0), CodeUnknown, ReasonUnknown},
		{Fact{ID: "c1", Code: 7, Origin: Audit}, CodeUnknown, ReasonUnknown}, // a code that nobody measured is not reported
		{NotStarted("c1", clock.Instant{}, "no such file"), 128, ReasonStartError},
	}
	for _, tt := range tests {
		if tt.f.ExitCode() != tt.code || tt.f.Reason() != tt.reason {
			t.Errorf("%v: code %d reason %s, want %d %s", tt.f, tt.f.ExitCode(), tt.f.Reason(), tt.code, tt.reason)
		}
	}
	if unmeasured(Audit, t0).Detail() == "" {
		t.Error("an unknown code has no sentence that says why")
	}
}

// PROPERTIES 5, 49: whatever the witnesses report, in whatever order and however often: a measured code
// is known in the end if anybody measured one, and the process's if anybody knew that; it is one
// that somebody with that rank reported, and to report everything once more changes nothing.
func TestAnyOrderAnyNumberOfTimes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	origins := []Origin{Kernel, Task, Stream, Audit}
	for range 5000 {
		var reported []Fact
		best := Guess
		codes := map[Rank]map[uint32]bool{OfThread: {}, OfProcess: {}}
		for range 1 + r.IntN(6) {
			f := Fact{ID: "c1", Origin: origins[r.IntN(4)], At: t0.Add(time.Duration(r.IntN(9)))}
			if r.IntN(2) == 0 {
				f.Measured, f.Code, f.FirstThread = true, uint32(r.IntN(3)), r.IntN(2) == 0
				codes[f.Rank()][f.Code] = true
			}
			best = max(best, f.Rank())
			reported = append(reported, f)
		}
		var known Fact
		for _, f := range reported {
			before := known
			known, _ = Merge(known, f)
			if known.Rank() < before.Rank() {
				t.Fatalf("a code became worse: %v -> %v", before, known)
			}
			if before.Measured && known.Code != before.Code && known.Rank() == before.Rank() {
				t.Fatalf("a measured code changed for one that is not better: %v -> %v", before, known)
			}
			if before.Rank() == OfProcess && known.Origin != before.Origin {
				t.Fatalf("the witness changed: %v -> %v", before, known)
			}
			if !before.At.IsZero() && known.At != before.At {
				t.Fatalf("the instant changed: %v -> %v", before, known)
			}
		}
		if known.Rank() != best || best != Guess && !codes[best][known.Code] {
			t.Fatalf("reported %v, known %v", reported, known)
		}
		for _, f := range reported {
			if again, more := Merge(known, f); more || again != known {
				t.Fatalf("to report %v again changed %v to %v", f, known, again)
			}
		}
	}
}

// That a code is confirmed is not told to anybody anew.
func TestAConfirmationAmendsNothing(t *testing.T) {
	was := first(0, t0)
	confirmed, _ := Merge(was, measured(0, Task, t0))
	if confirmed.Amends(was) {
		t.Errorf("%+v amends %+v", confirmed, was)
	}
	corrected, _ := Merge(was, measured(129, Task, t0))
	if !corrected.Amends(was) {
		t.Errorf("%+v does not amend %+v", corrected, was)
	}
}
