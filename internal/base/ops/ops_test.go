// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/base/event"
)

var (
	web     = Object{ID: "s1", Names: event.Names{Namespace: "default", Pod: "web"}}
	app     = Object{ID: "c1", Names: event.Names{Namespace: "default", Pod: "web", Sandbox: "s1", Container: "app"}}
	kubelet = event.WithClient(context.Background(), event.Client{Pid: 812, Name: "kubelet"})
)

// PROPERTIES 65: each operation is said in a sentence, with what it waits for, since when, for
// whom, and until when.
func TestTheWordsOfWhatIsUnderWay(t *testing.T) {
	for _, tc := range []struct {
		name  string
		begin func(l *List)
		want  string
	}{
		{"a stop in its grace period", func(l *List) {
			ctx, _ := l.Begin(kubelet, Work{Kind: Stop, What: "StopContainer", Of: app})
			ctx, _ = Begin(ctx, Work{Kind: Stop, Of: app})
			ctx, _ = Begin(ctx, Work{Kind: Signal, What: "SIGTERM", Until: time.Now().Add(15 * time.Second), Then: "SIGKILL"})
			Begin(ctx, Work{Kind: Wait, What: "its end to be on record"})
		}, "It is being stopped: SIGTERM 3 s ago, asked for by kubelet[812]; SIGKILL in 12 s."},
		{"two parts side by side", func(l *List) {
			ctx, _ := l.Begin(kubelet, Work{Kind: Run, Of: web})
			Begin(ctx, Work{Kind: Plugin, What: "the CNI plug-in bridge (ADD)"})
			Begin(ctx, Work{Kind: Shim, What: "the shim (Create)"})
		}, "default/web is being made: the CNI plug-in bridge (ADD) has not answered for 3 s, and the shim (Create) has not answered for 3 s, asked for by kubelet[812]."},
		{"a call without parts", func(l *List) {
			l.Begin(context.Background(), Work{Kind: Import, Of: Object{Image: "/a.tar"}})
		}, "/a.tar is being imported, for 3 s."},
		{"an import of a large archive", func(l *List) {
			ctx, _ := l.Begin(kubelet, Work{Kind: Import, Of: Object{Image: "/a.tar"}})
			Begin(ctx, Work{Kind: Wait, What: "the layer sha256:1 to be unpacked"})
		}, "/a.tar is being imported: it waits for the layer sha256:1 to be unpacked, for 3 s, asked for by kubelet[812]."},
		{"a pull whose layer is large", func(l *List) {
			ctx, _ := l.Begin(kubelet, Work{Kind: Pull, Of: Object{Image: "app:v1", ID: web.ID, Names: web.Names}})
			Begin(ctx, Work{Kind: Wait, What: "the rest of sha256:2 from registry.example"})
			Begin(ctx, Work{Kind: Wait, What: "the layer sha256:1 to be unpacked"})
		}, "default/web waits for the image app:v1, which is being pulled: it waits for the rest of sha256:2 from registry.example, for 3 s, " +
			"and it waits for the layer sha256:1 to be unpacked, for 3 s, asked for by kubelet[812]."},
		{"a checkpoint", func(l *List) {
			ctx, _ := l.Begin(kubelet, Work{Kind: Checkpoint, Of: app})
			Begin(ctx, Work{Kind: Shim, What: "the shim (Checkpoint)", Until: time.Now().Add(time.Minute)})
		}, "It is being checkpointed: the shim (Checkpoint) has not answered for 3 s, asked for by kubelet[812]; it is given up in 57 s."},
		{"a removal on a full disk", func(l *List) {
			ctx, _ := l.Begin(kubelet, Work{Kind: Remove, Of: app})
			Begin(ctx, Work{Kind: Disk, What: "the disk of the records"})
			l.Connect(Config{Steps: func() []Operation {
				return []Operation{{
					Work:  Work{Kind: Step, What: "release", Of: app, Until: time.Now().Add(4 * time.Second)},
					Since: time.Now().Add(-time.Minute),
					Tries: 7,
					Err:   "write berth.journal: no space left on device",
				}}
			}})
		}, "It waits for the next attempt of the step release, for 1 min; attempt 7 has failed: write berth.journal: no space left on device; " +
			"the next attempt in 4 s. It is being removed: the disk of the records has not answered for 3 s, asked for by kubelet[812]."},
		{"a step that has failed", func(l *List) {
			l.Connect(Config{Steps: func() []Operation {
				return []Operation{{
					Work:  Work{Kind: Step, What: "release", Of: app, Until: time.Now().Add(4 * time.Second)},
					Since: time.Now(),
					Tries: 2,
					Err:   "delete task c1: no answer",
				}}
			}})
		}, "It waits for the next attempt of the step release, for less than a second; attempt 2 has failed: delete task c1: no answer; the next attempt in 4 s."},
		{"a part that outlives its call", func(l *List) {
			ctx, call := l.Begin(kubelet, Work{Kind: Create, What: "CreateContainer", Of: app})
			Begin(context.WithoutCancel(ctx), Work{Kind: Create, Of: app, Until: time.Now().Add(time.Minute), Then: "what was made is undone"})
			call.End()
		}, "It is being created, for 3 s, asked for by kubelet[812]; what was made is undone in 57 s."},
		{"a bound that has passed", func(l *List) {
			l.Begin(context.Background(), Work{Kind: Pull, Of: Object{Image: "app:v1"}, Until: time.Now().Add(time.Second)})
		}, "app:v1 is being pulled, for 3 s; it is given up now."},
		{"nothing", func(l *List) {
			_, op := l.Begin(kubelet, Work{Kind: Stop, Of: app})
			op.End()
		}, ""},
		{"a call that reads, for less than a second", func(l *List) {
			time.Sleep(2500 * time.Millisecond)
			l.Begin(kubelet, Work{Kind: Read, What: "ListContainers"})
		}, ""},
		{"a call that reads, and hangs", func(l *List) {
			l.Begin(kubelet, Work{Kind: Read, What: "ListContainerStats"})
		}, "The node is in ListContainerStats, for 3 s, asked for by kubelet[812]."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, began := &List{}, time.Now()
				tc.begin(l)
				time.Sleep(3*time.Second - time.Since(began))
				list, _ := l.Snapshot()
				if got := strings.Join(Sentences(list, app, time.Now()), " "); got != tc.want {
					t.Errorf("said\n%s\nwant\n%s", got, tc.want)
				}
			})
		})
	}
}

// A person asks about a pod or a container by each of its names.
func TestWhatIsUnderWayIsFoundByEachName(t *testing.T) {
	l := &List{}
	l.Begin(kubelet, Work{Kind: Start, Of: app})
	l.Begin(kubelet, Work{Kind: Stop, Of: Object{ID: "s2", Names: event.Names{Namespace: "default", Pod: "web-2"}}})
	list, _ := l.Snapshot()
	for word, want := range map[string]string{
		"c1":              "c1",
		"web":             "s1",
		"default/web":     "s1",
		"app":             "c1",
		"web/app":         "c1",
		"default/web/app": "c1",
		"web-2":           "s2",
	} {
		of, ok := Named(list, word)
		if !ok || of.ID != want {
			t.Errorf("%s is %+v, want %s", word, of, want)
		}
		if about := About(list, of); len(about) != 1 {
			t.Errorf("%d operations are about %s", len(about), word)
		}
	}
	if of, ok := Named(list, "we"); ok {
		t.Errorf("a part of a name is %+v", of)
	}
}

// The list is bounded, and counts what it leaves out.
func TestTheListIsBounded(t *testing.T) {
	l := &List{}
	var all []*Op
	for range most + 10 {
		_, op := l.Begin(context.Background(), Work{Kind: Exec})
		all = append(all, op)
	}
	if list, left := l.Snapshot(); len(list) != most || left != 10 {
		t.Errorf("%d operations are listed and %d left out", len(list), left)
	}
	for _, op := range all {
		op.End()
	}
	if list, left := l.Snapshot(); len(list) != 0 || left != 0 {
		t.Errorf("%d operations are listed and %d left out after their end", len(list), left)
	}
}

// A wait of more than a second is in the history once it has ended, and one of more than ten also
// before: of what hung when the machine died, nothing was. A call has events of its own.
func TestALongWaitIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // notes come from timers as well
		var noted []string
		l := &List{}
		l.Connect(Config{Note: func(id string, e event.Event) {
			line := event.Entry{Event: e}.Line()
			mu.Lock()
			defer mu.Unlock()
			noted = append(noted, id+" "+line.Message+" "+line.Attrs[0].Value.String())
		}})
		ctx, call := l.Begin(kubelet, Work{Kind: Run, Of: web})
		for _, took := range []time.Duration{time.Second / 2, 2 * time.Second, 12 * time.Second} {
			_, part := Begin(ctx, Work{Kind: Plugin, What: "the CNI plug-in bridge (ADD) " + took.String()})
			time.Sleep(took)
			part.End()
		}
		call.End()
		mu.Lock()
		defer mu.Unlock()
		if want := []string{
			"s1 took long the CNI plug-in bridge (ADD) 2s",
			"s1 takes long the CNI plug-in bridge (ADD) 12s",
			"s1 took long the CNI plug-in bridge (ADD) 12s",
		}; !slices.Equal(noted, want) {
			t.Errorf("noted %q, want %q", noted, want)
		}
	})
}

// An attempt in flight is listed once, and none is missed that begins while the list is read.
func TestAStepIsListedOnce(t *testing.T) {
	l := &List{}
	step := Work{Kind: Step, What: "settle", Of: Object{ID: "c1"}}
	l.Connect(Config{Steps: func() []Operation {
		return []Operation{{Work: step}, {Work: Work{Kind: Step, What: "release", Of: Object{ID: "c2"}}}}
	}})
	l.Begin(context.Background(), step)
	list, _ := l.Snapshot()
	if len(list) != 2 {
		t.Errorf("%d steps are listed, want 2: %+v", len(list), list)
	}
}

func BenchmarkBeginAndEnd(b *testing.B) {
	l := &List{}
	for b.Loop() {
		_, op := l.Begin(kubelet, Work{Kind: Step, What: "settle", Of: app})
		op.End()
	}
}
