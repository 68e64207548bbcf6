// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"math/rand/v2"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func measured(code uint32, o Origin, at time.Time) Fact {
	return Fact{ID: "c1", Code: code, Measured: true, Origin: o, At: at}
}

func guess(o Origin, at time.Time) Fact { return Fact{ID: "c1", Origin: o, At: at} }

func TestMerge(t *testing.T) {
	t1 := t0.Add(time.Second)
	tests := []struct {
		name       string
		have, next Fact
		want       Fact
		more       bool
	}{
		{"the first word stands", Fact{}, measured(42, Stream, t0), measured(42, Stream, t0), true},
		{"nothing heard changes nothing", measured(42, Stream, t0), Fact{}, measured(42, Stream, t0), false},
		{"first measured stands", measured(42, Task, t0), measured(137, Kernel, t1), measured(42, Task, t0), false},
		{"measured replaces a guess, the instant stays", guess(Audit, t0), measured(42, Kernel, t1), measured(42, Kernel, t0), true},
		{"a guess never replaces a measured code", measured(0, Kernel, t0), guess(Audit, t1), measured(0, Kernel, t0), false},
		{"a guess never replaces a guess", guess(Audit, t0), guess(Kernel, t1), guess(Audit, t0), false},
		{"an instant that lacked is filled in", guess(Audit, time.Time{}), guess(Kernel, t1), guess(Audit, t1), true},
		{"facts of others are not ours", measured(1, Task, t0), Fact{ID: "c2", Code: 2, Measured: true, Origin: Kernel}, measured(1, Task, t0), false},
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

func TestOOMVerdictStays(t *testing.T) {
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
		{guess(Audit, t0), CodeUnknown, ReasonUnknown},
		{Fact{ID: "c1", Code: 7, Origin: Audit}, CodeUnknown, ReasonUnknown}, // a code that nobody measured is not reported
		{NotStarted("c1", time.Time{}, "no such file"), 128, ReasonStartError},
	}
	for _, tt := range tests {
		if tt.f.ExitCode() != tt.code || tt.f.Reason() != tt.reason {
			t.Errorf("%v: code %d reason %s, want %d %s", tt.f, tt.f.ExitCode(), tt.f.Reason(), tt.code, tt.reason)
		}
	}
	if guess(Audit, t0).Detail() == "" {
		t.Error("an unknown code must come with a sentence that says why")
	}
}

// Whatever the witnesses say, in whatever order and however often: a measured code is
// reported if anyone measured one, it is one that somebody measured, and hearing
// everything once more changes nothing.
func TestAnyOrderAnyNumberOfTimes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	origins := []Origin{Kernel, Task, Stream, Audit}
	for range 5000 {
		var heard []Fact
		var anyMeasured bool
		codes := map[uint32]bool{}
		for range 1 + r.IntN(6) {
			f := Fact{ID: "c1", Origin: origins[r.IntN(4)], At: t0.Add(time.Duration(r.IntN(9)))}
			if r.IntN(2) == 0 {
				f.Measured, f.Code = true, uint32(r.IntN(3))
				anyMeasured = true
				codes[f.Code] = true
			}
			heard = append(heard, f)
		}
		var known Fact
		for _, f := range heard {
			before := known
			known, _ = Merge(known, f)
			if before.Measured && (known.Code != before.Code || known.Origin != before.Origin) {
				t.Fatalf("a measured code changed: %v -> %v", before, known)
			}
			if !before.At.IsZero() && !known.At.Equal(before.At) {
				t.Fatalf("the instant changed: %v -> %v", before, known)
			}
		}
		if known.Measured != anyMeasured || (anyMeasured && !codes[known.Code]) {
			t.Fatalf("heard %v, known %v", heard, known)
		}
		for _, f := range heard {
			if again, more := Merge(known, f); more || again != known {
				t.Fatalf("hearing %v again changed %v to %v", f, known, again)
			}
		}
	}
}
