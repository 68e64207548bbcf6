// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"berth/internal/base/clock"
	"berth/internal/base/event"
	"berth/internal/base/exit"
	"berth/internal/base/frame"
)

// start opens a recorder and runs it until stop is called, which is a kill: nothing is closed.
func start(t *testing.T, cfg Config) (*Recorder, func()) {
	t.Helper()
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 64 << 20
	}
	if cfg.MaxAge == 0 {
		cfg.MaxAge = 7 * 24 * time.Hour
	}
	if cfg.Boot == "" {
		cfg.Boot = "boot 1"
	}
	r := Open(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var stopped bool
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r.ring != nil {
			_ = r.ring.close()
		}
	}
	t.Cleanup(stop)
	return r, stop
}

func (r *Recorder) add(id string, e event.Event) {
	r.Add(event.Entry{At: clock.Stamped(time.Now()), ID: id, Event: e})
}

// kinds returns the kinds of the entries, with their details if these are asked for.
func kinds(t *testing.T, r *Recorder, q Query) []string {
	t.Helper()
	a, err := r.Find(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range a.Entries {
		if e.Kind == "" {
			got = append(got, e.What)
			continue
		}
		got = append(got, e.Kind)
	}
	return got
}

func pod(name string) event.Names {
	return event.Names{Namespace: "default", Pod: name, UID: "uid-of-" + name}
}

func container(pod, sandbox, name string, attempt uint32) event.Names {
	return event.Names{
		Namespace: "default",
		Pod:       pod,
		UID:       "uid-of-" + pod,
		Sandbox:   sandbox,
		Container: name,
		Attempt:   attempt,
	}
}

func ended(code uint32) event.ExitSettled {
	return event.ExitSettled{Exit: event.ExitOf(exit.Fact{
		Code:     code,
		Measured: true,
		Origin:   exit.Kernel,
		At:       clock.Stamped(time.Now()),
	})}
}

// life is what happens to a pod of one container.
func (r *Recorder) life(name string, attempt uint32, code uint32) {
	sandbox, id := fmt.Sprintf("%064x", "s"+name), fmt.Sprintf("%056x%08x", "c"+name, attempt)
	r.add(sandbox, event.PullBegan{Image: "registry.example/team/program:1.2.3"})
	r.add(sandbox, event.ImagePulled{Image: "registry.example/team/program:1.2.3", Took: time.Second})
	r.add(sandbox, event.SandboxReady{Names: pod(name), Took: time.Second})
	r.add(id, event.ContainerCreated{Names: container(name, sandbox, "app", attempt), Took: time.Second})
	r.add(id, event.ContainerRunning{Pid: 4711, Took: time.Second})
	e := ended(code)
	r.add(id, event.ExitReported{Exit: e.Exit})
	r.add(id, e)
	r.add(id, event.ExitReported{Exit: e.Exit})
	r.add(id, event.Released{What: []string{"task", "io"}, Holds: []string{"files", "snapshot"}})
	r.add(sandbox, event.StopRequested{Timeout: 30 * time.Second})
	r.add(sandbox, ended(0))
	r.add(id, event.Released{What: []string{"files", "snapshot"}})
	r.add(id, event.Removed{})
	r.add(sandbox, event.Released{What: []string{"task", "io", "network", "files"}})
	r.add(sandbox, event.Removed{})
}

// PROPERTIES 15.
func TestWhatHappenedIsReturnedInOrder(t *testing.T) {
	r := Open(Config{})
	at := clock.Stamped(time.Unix(1, 0))
	r.Add(event.Entry{At: at, ID: "abc1", Event: event.ContainerRunning{Pid: 7, Took: time.Second}})
	r.Add(event.Entry{At: at.Add(1), ID: "abc1", Event: event.LogPumpEnded{Err: "oops"}})
	a, err := r.Find(t.Context(), Query{Of: "abc"})
	if err != nil || a.ID != "abc1" || len(a.Entries) != 2 {
		t.Fatalf("%+v %v", a, err)
	}
	x, y := a.Entries[0], a.Entries[1]
	if x.At != at || x.Kind != "ContainerRunning" || x.By != event.Call || x.What != "container RUNNING" || x.Detail != "pid=7 took=1s" {
		t.Errorf("%+v", x)
	}
	if y.At != at.Add(1) || y.Kind != "LogPumpEnded" || y.By != event.Berth || y.What != "log pump ended" || y.Err != "oops" {
		t.Errorf("%+v", y)
	}
	r.Add(event.Entry{At: at, ID: "abc2", Event: event.Removed{}})
	if _, err := r.Find(t.Context(), Query{Of: "abc"}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if _, err := r.Find(t.Context(), Query{Of: "x"}); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if got := kinds(t, r, Query{After: a.Last}); !slices.Equal(got, []string{"Removed"}) {
		t.Errorf("after the answer came %v", got)
	}
}

func TestWhatIsMeantByAName(t *testing.T) {
	r := Open(Config{})
	r.add("s1", event.SandboxReady{Names: pod("web")})
	r.add("c1", event.ContainerCreated{Names: container("web", "s1", "nginx", 0)})
	r.add("c2", event.ContainerNotMade{Names: container("web", "s1", "nginx", 1)})
	r.add("c1", event.Removed{})
	r.add("s0", event.SandboxReady{Names: pod("old")})
	r.add("s2", event.SandboxReady{Names: pod("web")}) // made again, with the name of before
	r.add("c3", event.ContainerCreated{Names: container("web", "s2", "nginx", 0)})
	r.add("", event.NotCompared{})
	for word, want := range map[string]string{
		"web":               "s2",
		"default/web":       "s2",
		"uid-of-web":        "s2",
		"nginx":             "c3",
		"web/nginx":         "c3",
		"default/web/nginx": "c3",
		"c1":                "c1",
		"old":               "s0",
	} {
		if a, err := r.Find(t.Context(), Query{Of: word}); err != nil || a.ID != want {
			t.Errorf("%s is %q, not %s: %v", word, a.ID, want, err)
		}
	}
	for _, word := range []string{"web/", "other", "/", "default/"} {
		if a, err := r.Find(t.Context(), Query{Of: word}); err == nil {
			t.Errorf("%q is %s", word, a.ID)
		}
	}
	for _, tt := range []struct {
		q    Query
		want []string
	}{
		{Query{Of: "web"}, []string{"SandboxReady", "ContainerCreated"}},
		{Query{Of: "s1"}, []string{"SandboxReady", "ContainerCreated", "ContainerNotMade", "Removed"}},
		{Query{Of: "web", Attempts: true}, []string{"SandboxReady", "ContainerCreated", "ContainerNotMade", "Removed", "SandboxReady", "ContainerCreated"}},
		{Query{Of: "nginx", Attempts: true}, []string{"ContainerCreated", "ContainerNotMade", "Removed", "ContainerCreated"}},
		{Query{}, []string{"SandboxReady", "ContainerCreated", "ContainerNotMade", "Removed", "SandboxReady", "SandboxReady", "ContainerCreated", "NotCompared"}},
		{Query{Since: clock.Stamped(time.Now().Add(time.Hour))}, nil},
	} {
		if got := kinds(t, r, tt.q); !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v", tt.q, got)
		}
	}
}

func TestAnEntryIsBounded(t *testing.T) {
	r := Open(Config{})
	long := strings.Repeat("ä", maxEntry)
	r.add("a", event.AttemptFailed{Step: long, Err: long})
	a, err := r.Find(t.Context(), Query{Of: "a"})
	if err != nil || len(a.Entries) != 1 {
		t.Fatal(a, err)
	}
	for _, s := range []string{a.Entries[0].Err, a.Entries[0].Detail} {
		if len(s) > maxText+len("...") || !utf8.ValidString(s) || !strings.HasSuffix(s, "ä...") {
			t.Errorf("%d bytes, ending in %q", len(s), s[len(s)-10:])
		}
	}
	if n := len(r.course.items[0].payload); n > maxEntry {
		t.Errorf("it takes %d bytes", n)
	}
}

func TestMemoryAloneIsBounded(t *testing.T) {
	r := Open(Config{})
	for i := range 3 * maxItems {
		r.add(fmt.Sprint("id", i), event.Removed{})
		if i%1000 == 0 {
			r.mu.Lock()
			r.absorbLocked()
			r.mu.Unlock()
		}
	}
	if _, err := r.Find(t.Context(), Query{}); err != nil {
		t.Fatal(err)
	}
	if len(r.course.items) > maxItems || len(r.index.byID) > maxItems+keepItems {
		t.Errorf("%d items, %d IDs", len(r.course.items), len(r.index.byID))
	}
}

// PROPERTIES 42: berth is killed, and started again. What is older than a second is there.
func TestHistorySurvivesAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "timeline")
		r, kill := start(t, Config{Dir: dir, Version: "1"})
		r.life("web", 0, 0)
		time.Sleep(time.Second)
		want := kinds(t, r, Query{Of: "web"})
		kill()
		r, kill = start(t, Config{Dir: dir, Version: "2"})
		synctest.Wait()
		if got := kinds(t, r, Query{Of: "web"}); !slices.Equal(got, want) || len(got) != 15 {
			t.Errorf("after a kill:\n%v\nwant\n%v", got, want)
		}
		r.add("later", event.Removed{})
		time.Sleep(time.Second)
		kill()
		for _, tt := range []struct{ boot, want string }{
			{"boot 1", "after=" + event.AfterKill},
			{"boot 2", "after=" + event.AfterReboot},
			// PROPERTIES 68
			{"boot 3", "after=" + event.AfterShutdown},
			{"boot 4", "after=" + event.AfterReboot},
		} {
			r, kill = start(t, Config{Dir: dir, Boot: tt.boot})
			synctest.Wait()
			a, err := r.Find(t.Context(), Query{})
			if err != nil {
				t.Fatal(err)
			}
			if last := a.Entries[len(a.Entries)-1]; last.Kind != "BerthStarted" || !strings.Contains(last.Detail, tt.want) {
				t.Errorf("%s: %+v", tt.boot, last)
			}
			for i := 1; i < len(a.Entries); i++ {
				if a.Entries[i].Number == a.Entries[i-1].Number {
					t.Errorf("number %d is there twice", a.Entries[i].Number)
				}
			}
			if tt.boot == "boot 2" {
				r.add("", event.MachineShutDown{})
			}
			time.Sleep(time.Second)
			kill()
		}
	})
}

func TestWhatWasStoppedIsNotTakenForAKill(t *testing.T) {
	dir := t.TempDir()
	r := Open(Config{Dir: dir, MaxBytes: 64 << 20, MaxAge: time.Hour, Boot: "b"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	<-r.loaded
	cancel()
	<-done
	r.add("c1", event.Removed{}) // at the last moment
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ = start(t, Config{Dir: dir, Boot: "b"})
	<-r.loaded
	a, err := r.Find(t.Context(), Query{})
	if err != nil || len(a.Entries) != 4 || a.Entries[1].Kind != "Removed" ||
		!strings.Contains(a.Entries[3].Detail, "after="+event.AfterStop) {
		t.Errorf("%+v %v", a, err)
	}
}

// PROPERTIES 42: a power cut tears the end of the ring at any byte, or leaves zeros or old blocks
// there. What was whole is there, and one entry says that something is missing.
func TestATornEndCostsNoMoreThanItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, kill := start(t, Config{Dir: dir})
		synctest.Wait() // the entry about the start comes first
		for i := range 6 {
			r.add("c1", event.ResourcesApplied{Version: uint64(i)})
		}
		time.Sleep(time.Second)
		kill()
		files, err := filepath.Glob(filepath.Join(dir, "*.rec"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		whole, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.LastIndex(whole, []byte(magic)) // that of the sixth, of which each cut costs a part
		for cut := at; cut < len(whole); cut++ {
			for _, fill := range []byte{0, 1, magic[0]} {
				torn := slices.Clone(whole[:cut])
				if fill != 1 {
					torn = append(torn, bytes.Repeat([]byte{fill}, 5000)...)
				}
				tornDir := t.TempDir()
				if err := os.WriteFile(filepath.Join(tornDir, filepath.Base(files[0])), torn, 0o600); err != nil {
					t.Fatal(err)
				}
				if cut%17 != 0 && cut != at { // each takes a moment
					g := newRing(tornDir, 1<<20, clock.New(nil))
					if err := g.open(); err != nil || len(g.list) != 1 || g.list[0].whole || len(g.list[0].offsets) != 6 {
						t.Errorf("cut at %d: %+v %v", cut, g.list, err)
					}
					continue
				}
				for life := range 2 {
					r, kill := start(t, Config{Dir: tornDir})
					synctest.Wait()
					got := kinds(t, r, Query{})
					said := 0
					for _, k := range got {
						if k == "HistoryUnread" {
							said++
						}
					}
					applied := kinds(t, r, Query{Of: "c1"})
					want := 1
					if cut == at && fill == 1 {
						want = 0
					}
					if len(applied) != 5+life || said != want {
						t.Fatalf("cut at %d, life %d: %v", cut, life, got)
					}
					r.add("c1", event.Removed{})
					time.Sleep(time.Second)
					kill()
				}
			}
		}
	})
}

// A byte in the middle of a segment is damaged: that costs the record that it is in, and no other.
func TestADamagedSegmentCostsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, kill := start(t, Config{Dir: dir, MaxBytes: segments * minSegment}) // more than is written
		for i := range 1500 {
			r.add(fmt.Sprint("c", i), event.Removed{})
			if i%100 == 0 {
				time.Sleep(time.Second)
			}
		}
		time.Sleep(time.Second)
		all := len(kinds(t, r, Query{}))
		kill()
		files, _ := filepath.Glob(filepath.Join(dir, "*.rec"))
		if len(files) < 3 || all < 1500 {
			t.Fatalf("%d files, %d entries", len(files), all)
		}
		b, err := os.ReadFile(files[1])
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 0xff
		if err := os.WriteFile(files[1], b, 0o600); err != nil {
			t.Fatal(err)
		}
		if b, err = os.ReadFile(files[0]); err != nil {
			t.Fatal(err)
		}
		// The first is of a newer berth.
		newer := bytes.Count(b, []byte(magic)) - 1
		n, payload, _ := formOf(b).Read(b)
		b = append(formOf(b).Append(nil, n, []byte(`{"format":2}`)), b[frame.Header+len(payload):]...)
		if err := os.WriteFile(files[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, _ = start(t, Config{Dir: dir, MaxBytes: 64 << 20})
		synctest.Wait()
		got := kinds(t, r, Query{})
		left := all - newer - 1 + 3 // two files are said to be damaged, and the start
		if len(got) != left || !slices.Contains(got, "HistoryUnread") {
			t.Errorf("%d entries, want %d", len(got), left)
		}
		if _, err := os.Stat(files[0]); err != nil {
			t.Errorf("what a newer berth wrote: %v", err)
		}
	})
}

// PROPERTIES 42: the disk takes nothing. Nobody waits for it, the newest is known, and afterwards an
// entry says what is missing.
func TestAFullDiskCostsWhatMemoryCannotHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "timeline")
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // where the directory should be
			t.Fatal(err)
		}
		r, kill := start(t, Config{Dir: dir})
		first := clock.Stamped(time.Now())
		for i := range maxItems + 5000 {
			r.add("c1", event.ExitCorrected{Exit: event.Exit{Code: uint32(i)}})
			if i%4000 == 0 {
				time.Sleep(3 * time.Second)
			}
		}
		time.Sleep(3 * time.Second)
		if err := r.Keep(t.Context(), "c1"); err == nil {
			t.Error("an exit is on a disk that takes nothing")
		}
		a, err := r.Find(t.Context(), Query{Of: "c1"})
		if err != nil || len(a.Entries) == 0 {
			t.Fatal(err)
		}
		newest := a.Entries[len(a.Entries)-1].Number
		r.mu.Lock()
		items, numbers := len(r.course.items), len(r.index.byID["c1"].numbers)
		r.mu.Unlock()
		if items > maxItems || numbers > maxItems {
			t.Errorf("%d items, %d numbers", items, numbers)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if err := r.Keep(t.Context(), "c1"); err != nil {
			t.Error(err)
		}
		kill()
		r, _ = start(t, Config{Dir: dir})
		synctest.Wait()
		if a, err = r.Find(t.Context(), Query{Of: "c1"}); err != nil || a.Entries[len(a.Entries)-1].Number != newest {
			t.Errorf("the newest entry is not %d: %v", newest, err)
		}
		node, err := r.Find(t.Context(), Query{Of: ""})
		if err != nil {
			t.Fatal(err)
		}
		var lost event.EntriesLost
		for _, e := range node.Entries {
			if l, ok := e.Event.(event.EntriesLost); ok {
				lost = l
			}
		}
		if lost.Count < 4000 || lost.Count > 6000 || lost.From.Before(first) || !lost.To.After(lost.From) || !strings.Contains(lost.Err, "not a directory") {
			t.Errorf("%+v", lost)
		}
	})
}

// PROPERTIES 42: the exits that are on record are in the history, once, also if the power was cut
// before the history was on the disk.
func TestAnExitOnRecordIsInTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, kill := start(t, Config{Dir: dir})
		r.add("c1", event.ContainerCreated{Names: container("web", "s1", "app", 0)})
		e := ended(42)
		r.add("c1", e)
		time.Sleep(time.Second)
		kill()
		lost := ended(43)
		onRecord := []Ended{
			{"c1", container("web", "s1", "app", 0), e.Exit},
			{"c2", container("web", "s1", "app", 1), lost.Exit},
		}
		for range 2 {
			r, kill = start(t, Config{Dir: dir})
			r.Recall(onRecord)
			time.Sleep(time.Second)
			if got := kinds(t, r, Query{Of: "c1"}); !slices.Equal(got, []string{"ContainerCreated", "ExitSettled", "ContainerCrashed"}) {
				t.Errorf("c1: %v", got)
			}
			if got := kinds(t, r, Query{Of: "c2"}); !slices.Equal(got, []string{"ExitRecalled", "ContainerCrashed"}) {
				t.Errorf("c2: %v", got)
			}
			if a, err := r.Find(t.Context(), Query{Of: "web/app"}); err != nil || a.ID != "c2" {
				t.Errorf("%+v %v", a, err)
			}
			kill()
		}
	})
}

// A container that ends at once has its exit before the call that started it is over. It is one
// crash, also for the next berth.
func TestAnExitBeforeTheEndOfTheStartIsOneCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		names := container("web", "s1", "app", 0)
		r, kill := start(t, Config{Dir: dir})
		synctest.Wait()
		e := ended(42)
		r.add("c1", event.ContainerCreated{Names: names})
		r.add("c1", e)
		r.add("c1", event.ContainerRunning{Pid: 7})
		time.Sleep(time.Second)
		kill()
		for range 2 {
			r, kill = start(t, Config{Dir: dir})
			r.Recall([]Ended{{"c1", names, e.Exit}})
			time.Sleep(time.Second)
			want := []string{"ContainerCreated", "ExitSettled", "ContainerRunning", "ContainerCrashed"}
			if got := kinds(t, r, Query{Of: "c1"}); !slices.Equal(got, want) {
				t.Errorf("%v", got)
			}
			kill()
		}
	})
}

// What one crash is looked into for takes its time. What comes after it is neither late nor counted
// for it.
func TestCrashesAreLookedIntoSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := func(ctx context.Context, id string) Seen {
			if id == "c1" {
				<-ctx.Done()
			}
			return Seen{Memory: 1 << 20, Log: []string{id}}
		}
		r, _ := start(t, Config{Dir: t.TempDir(), Seen: seen})
		synctest.Wait()
		for i, id := range []string{"c1", "c2"} {
			r.add(id, event.ContainerCreated{Names: container("web", "s1", "app", uint32(i))})
			r.add(id, ended(uint32(i+1)))
			time.Sleep(time.Millisecond)
		}
		series := func() event.ContainerCrashed {
			a, err := r.Find(t.Context(), Query{Of: "web/app"})
			if err != nil {
				t.Fatal(err)
			}
			return a.Series["default/web/app"]
		}
		synctest.Wait()
		if s := series(); s.Count != 1 || s.Last.Code != 2 || s.Last.Log[0] != "c2" {
			t.Errorf("%+v", s)
		}
		time.Sleep(seenTimeout)
		if s := series(); s.Count != 2 || s.Last.Code != 2 || s.Last.Log[0] != "c2" || s.First.Code != 1 ||
			s.First.Memory != 1<<20 {
			t.Errorf("%+v", s)
		}
	})
}

// Before a record goes that has an exit, the history has it on the disk.
func TestAnExitIsKeptBeforeItsRecordGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, kill := start(t, Config{Dir: dir})
		synctest.Wait()
		r.add("c1", ended(42))
		for range 3 {
			if err := r.Keep(t.Context(), "c1"); err != nil {
				t.Fatal(err)
			}
		}
		if exitAt := r.index.byID["c1"].exitAt; !r.ring.has(exitAt) {
			t.Errorf("the exit is %d, which is not synced", exitAt)
		}
		kill() // at once
		r, _ = start(t, Config{Dir: dir})
		synctest.Wait()
		if got := kinds(t, r, Query{Of: "c1"}); !slices.Equal(got, []string{"ExitSettled"}) {
			t.Errorf("%v", got)
		}
		if err := r.Keep(t.Context(), "unknown"); err != nil {
			t.Error(err)
		}
	})
}

// PROPERTIES 42: of each series the first and the last crash are kept with their number, however
// much happens on the node, within the size of the ring.
func TestTheFirstAndTheLastCrashAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 2 << 20
		dir := t.TempDir()
		seen := func(_ context.Context, id string) Seen {
			return Seen{Log: []string{"what " + id[:2] + " wrote"}, Memory: 1 << 20, CPU: time.Second}
		}
		cfg := Config{Dir: dir, MaxBytes: size, Seen: seen}
		r, kill := start(t, cfg)
		synctest.Wait()
		crash := func(name, id string, attempt uint32, code uint32) {
			r.add(id, event.ContainerCreated{Names: container(name, "s1", "app", attempt)})
			r.add(id, event.ContainerRunning{})
			r.add(id, ended(code))
			time.Sleep(time.Second)
		}
		crash("web", "c1", 0, 1)
		crash("web", "c2", 1, 2)
		crash("web", "c3", 2, 3)
		crash("well", "d1", 0, 1)
		crash("well", "d2", 1, 0) // the end of the series
		crash("well", "d3", 2, 7)
		r.add("e1", event.ContainerCreated{Names: container("asked", "s1", "app", 0)})
		r.add("e1", event.StopRequested{})
		r.add("e1", ended(137))
		time.Sleep(time.Second)
		for life := range 3 { // the ring is written over several times
			for i := range 400 {
				r.life(fmt.Sprint("churn-", life, "-", i), 0, 0)
				time.Sleep(200 * time.Millisecond)
			}
			kill()
			r, kill = start(t, cfg)
			synctest.Wait()
		}
		total, files := int64(0), 0
		paths, _ := filepath.Glob(filepath.Join(dir, "*.rec"))
		for _, path := range paths {
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			total, files = total+st.Size(), files+1
		}
		if total > size || files < 8 {
			t.Errorf("%d bytes in %d files", total, files)
		}
		if first := r.ring.oldest(); first < 5000 {
			t.Errorf("nothing was dropped: the first entry is %d", first)
		}
		a, err := r.Find(t.Context(), Query{Of: "web/app"})
		if err != nil || a.ID != "c3" || len(a.Entries) != 1 {
			t.Fatalf("%+v %v", a, err)
		}
		s := a.Series["default/web/app"]
		if s.Count != 3 || s.First.Code != 1 || s.First.Attempt != 0 || s.First.Log[0] != "what c1 wrote" ||
			s.Last.Code != 3 || s.Last.Attempt != 2 || s.Last.Log[0] != "what c3 wrote" || s.Last.Memory != 1<<20 || s.Last.CPU != time.Second {
			t.Errorf("%+v", s)
		}
		if a, err = r.Find(t.Context(), Query{Of: "well/app"}); err != nil || a.Series["default/well/app"].Count != 1 {
			t.Errorf("%+v %v", a.Series, err)
		}
		if a, err = r.Find(t.Context(), Query{Of: "asked/app"}); err == nil {
			t.Errorf("what was asked for is a crash: %+v", a)
		}
		// It goes on as if berth had not been killed.
		crash("web", "c4", 3, 4)
		if a, err = r.Find(t.Context(), Query{Of: "web/app"}); err != nil || a.Series["default/web/app"].Count != 4 {
			t.Errorf("%+v %v", a.Series, err)
		}
		// Nothing is kept for ever.
		kill()
		cfg.MaxAge = time.Minute
		r, _ = start(t, cfg)
		time.Sleep(2 * time.Hour)
		r.add("x", event.Removed{})
		time.Sleep(2 * time.Hour)
		if a, err = r.Find(t.Context(), Query{Of: "web/app"}); err == nil && len(a.Series) > 0 {
			t.Errorf("after its time: %+v", a.Series)
		}
	})
}

// What cannot be looked at holds up nobody: the crash is recorded without it.
func TestALogThatCannotBeReadHoldsUpNoCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		r, kill := start(t, Config{Dir: t.TempDir(), Seen: func(context.Context, string) Seen { <-hangs; return Seen{} }})
		synctest.Wait()
		for i := range 2 * maxSeeing {
			id := fmt.Sprint("c", i)
			r.add(id, event.ContainerCreated{Names: container("web", "s1", "app", 0)})
			r.add(id, ended(1))
		}
		time.Sleep(seenTimeout + time.Second)
		a, err := r.Find(t.Context(), Query{Of: "web/app"})
		if err != nil || a.Series["default/web/app"].Count != 2*maxSeeing {
			t.Errorf("%+v %v", a.Series, err)
		}
		close(hangs)
		kill()
	})
}

// A thousand pods that come and go stay whole in a ring of the default size.
func TestAThousandPodsStayInTheRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, kill := start(t, Config{Dir: dir})
		for i := range 1000 {
			r.life(fmt.Sprint("deployment-7d9f8b6c5d-", i), uint32(i%3), uint32(i%2))
			if i%100 == 0 {
				time.Sleep(200 * time.Millisecond)
			}
		}
		time.Sleep(3 * time.Second)
		kill()
		total := int64(0)
		for _, s := range r.ring.list {
			total += s.bytes
		}
		t.Logf("%d bytes, %d for each pod", total, total/1000)
		if total > 16<<20 {
			t.Errorf("they take %d bytes", total)
		}
		r, _ = start(t, Config{Dir: dir})
		synctest.Wait()
		for i := 0; i < 1000; i += 97 {
			want := 15 + i%2 // and the crash
			if got := kinds(t, r, Query{Of: fmt.Sprint("deployment-7d9f8b6c5d-", i)}); len(got) != want {
				t.Fatalf("pod %d: %v", i, got)
			}
		}
	})
}

// One container to which something happens all the time leaves the history of the others.
func TestOneContainerDoesNotFillTheRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := start(t, Config{Dir: t.TempDir(), MaxBytes: 4 << 20})
		r.life("web", 0, 0)
		for range 100 {
			for range 1000 {
				r.add("busy", event.OOMKillSurvived{Kills: 1})
			}
			time.Sleep(200 * time.Millisecond)
		}
		r.add("busy", ended(137))
		time.Sleep(time.Second)
		if got := kinds(t, r, Query{Of: "web"}); len(got) != 15 {
			t.Errorf("%v", got)
		}
		if got := kinds(t, r, Query{Of: "busy"}); len(got) > maxAnswer+1 || got[len(got)-1] != "ExitSettled" {
			t.Errorf("%d entries, the last is %s", len(got), got[len(got)-1])
		}
	})
}

// What happened since an instant was cut to the last entries before the rest was left out, so that
// a busy hour had no beginning.
func TestWhatHappenedSinceIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r, kill := start(t, Config{Dir: dir, MaxBytes: segments * minSegment}) // of which a part is dropped
		for i := range 4 * maxAnswer {
			r.add(fmt.Sprint("c", i%50), event.ResourcesApplied{Version: uint64(i)})
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		kill()
		r, _ = start(t, Config{Dir: dir})
		synctest.Wait()
		for _, q := range []Query{{Since: clock.Stamped(time.Now().Add(-5000 * time.Second))}, {Since: clock.Stamped(time.Now().Add(-100 * time.Second)), Of: "c7"}} {
			want := 4998 // until the kill, and the start
			if q.Of != "" {
				want = 2
			}
			got, parts := 0, 0
			for more := true; more; parts++ {
				a, err := r.Find(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range a.Entries {
					if e.Number <= q.After || e.Kind == "" {
						t.Errorf("after %d comes %+v", q.After, e)
					}
				}
				got, q.After, more = got+len(a.Entries), a.Last, a.More
			}
			if got < want-3 || got > want+3 || parts > 5 {
				t.Errorf("since %s: %d entries in %d parts, want %d", q.Since, got, parts, want)
			}
		}
	})
}

// While the disk does not answer, what is in memory is told, and what is missing.
func TestTheDiskDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := start(t, Config{Dir: t.TempDir()})
		for i := range 3 * keepItems {
			r.add(fmt.Sprint("c", i%8), event.Removed{})
			if i%512 == 0 {
				time.Sleep(time.Second)
			}
		}
		time.Sleep(time.Second)
		if !r.reading.TryAcquire(maxReading) { // answers that wait for ever
			t.Fatal("an answer still waits for the disk")
		}
		got := kinds(t, r, Query{Of: "c1"})
		if len(got) < keepItems/8 || !strings.Contains(got[0], "does not answer") {
			t.Errorf("%d entries, the first is %s", len(got), got[0])
		}
	})
}

// BenchmarkAdd measures what an entry costs whoever adds it.
func BenchmarkAdd(b *testing.B) {
	r := Open(Config{Dir: b.TempDir(), MaxBytes: 64 << 20, MaxAge: time.Hour})
	go func() { _ = r.Run(b.Context()) }()
	i := 0
	for b.Loop() {
		i++
		r.Add(event.Entry{
			At:    clock.Stamped(time.Unix(int64(i), 0)),
			ID:    fmt.Sprint("id", i%1500),
			Event: event.AttemptFailed{Step: "release", Attempt: i},
		})
	}
}

// stepped is a machine whose clock can be set.
type stepped struct {
	clock.Source
	began time.Time
	ahead time.Duration
}

func (s *stepped) SinceBoot() time.Duration         { return time.Since(s.began) }
func (s *stepped) Read() (time.Duration, time.Time) { return s.SinceBoot(), time.Now().Add(s.ahead) }
func (s *stepped) Boot() string                     { return "boot 1" }

// PROPERTIES 70: the clock is set ahead by thirty days, and berth is restarted: the history was deleted
// for its age, and stayed so when the clock was right again. It goes by what the node has lived.
func TestNothingIsDeletedForAWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, machine := t.TempDir(), &stepped{began: time.Now()}
		begin := func() (*Recorder, func()) {
			c, err := clock.Open(clock.Path(dir), machine)
			if err != nil {
				t.Fatal(err)
			}
			return start(t, Config{Dir: filepath.Join(dir, "timeline"), Clock: c, MaxAge: 24 * time.Hour})
		}
		r, kill := begin()
		r.life("web", 0, 0)
		time.Sleep(3 * time.Second)
		want := kinds(t, r, Query{Of: "web"})
		kill()
		for _, machine.ahead = range []time.Duration{30 * 24 * time.Hour, 0, -30 * 24 * time.Hour} {
			r, kill = begin()
			for range 3 { // segments are turned, and dropped, as entries come
				r.add("x", event.Removed{})
				time.Sleep(3 * time.Hour / 2)
			}
			if got := kinds(t, r, Query{Of: "web"}); len(got) < len(want) {
				t.Errorf("with a clock that is ahead by %s: %v, want %v", machine.ahead, got, want)
			}
			kill()
		}
		r, _ = begin() // and what is old goes
		for range 40 {
			r.add("x", event.Removed{})
			time.Sleep(time.Hour)
		}
		if got, err := r.Find(t.Context(), Query{Of: "web"}); err == nil {
			t.Errorf("after its time: %v", got)
		}
	})
}
