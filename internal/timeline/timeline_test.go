// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"berth/internal/event"
)

// PROPERTIES 15.
func TestWhatHappenedIsReturnedInOrder(t *testing.T) {
	tl := New()
	at := time.Unix(1, 0)
	tl.Add(event.Entry{At: at, ID: "abc1", Event: event.ContainerRunning{Pid: 7, Took: time.Second}})
	tl.Add(event.Entry{At: at.Add(1), ID: "abc1", Event: event.LogPumpEnded{Err: "oops"}})
	id, es, err := tl.Of("abc")
	want := []Entry{
		{At: at, Kind: "ContainerRunning", By: event.Call, What: "container RUNNING", Detail: "pid=7 took=1s"},
		{At: at.Add(1), Kind: "LogPumpEnded", By: event.Berth, What: "log pump ended", Err: "oops"},
	}
	if err != nil || id != "abc1" || !slices.Equal(es, want) {
		t.Fatalf("%s %+v %v", id, es, err)
	}
	tl.Add(event.Entry{At: at, ID: "abc2", Event: event.Removed{}})
	if _, _, err := tl.Of("abc"); !errdefs.IsInvalidArgument(err) {
		t.Fatal(err)
	}
	if _, _, err := tl.Of("x"); !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
}

func TestAnEntryIsBounded(t *testing.T) {
	tl := New()
	long := strings.Repeat("ä", maxText)
	tl.Add(event.Entry{At: time.Unix(1, 0), ID: "a", Event: event.AttemptFailed{Step: long, Err: long}})
	_, es, err := tl.Of("a")
	if err != nil || len(es) != 1 {
		t.Fatal(es, err)
	}
	for _, s := range []string{es[0].Err, es[0].Detail} {
		if len(s) > maxText+len("...") || !utf8.ValidString(s) || !strings.HasSuffix(s, "ä...") {
			t.Errorf("%d bytes, ending in %q", len(s), s[len(s)-10:])
		}
	}
}

// BenchmarkAdd measures one more entry for one of many IDs that have as many as they may.
func BenchmarkAdd(b *testing.B) {
	tl := New()
	i := 0
	for b.Loop() {
		i++
		tl.Add(event.Entry{
			At:    time.Unix(int64(i), 0),
			ID:    fmt.Sprint("id", i%1500),
			Event: event.AttemptFailed{Step: "release", Attempt: i},
		})
	}
}

func TestTheTimelineIsBounded(t *testing.T) {
	tl := New()
	for i := range 3 * maxIDs {
		tl.Add(event.Entry{At: time.Unix(int64(i), 0), ID: fmt.Sprint("id", i), Event: event.Removed{}})
	}
	for i := range 3 * maxEntries {
		tl.Add(event.Entry{At: time.Unix(int64(i), 0), ID: "busy", Event: event.ResourcesApplied{Version: uint64(i)}})
	}
	if len(tl.mu.byID) != maxIDs || tl.mu.used.Len() != maxIDs {
		t.Fatal(len(tl.mu.byID))
	}
	_, es, _ := tl.Of("busy")
	if len(es) != maxEntries+1 || es[0].Detail != "version=0" || es[len(es)-1].Detail != fmt.Sprint("version=", 3*maxEntries-1) {
		t.Fatalf("%d entries, %v ... %v", len(es), es[0], es[len(es)-1])
	}
}

// What was removed could be found by its whole ID alone, which nobody knows any more.
func TestWhatWasRemovedIsFoundByItsName(t *testing.T) {
	tl := New()
	now := time.Now()
	web, nginx := event.Names{Pod: "web"}, event.Names{Pod: "web", Container: "nginx"}
	tl.Add(event.Entry{At: now, ID: "aaa", Event: event.SandboxReady{Names: web}})
	tl.Add(event.Entry{At: now, ID: "bbb", Event: event.ContainerCreated{Names: nginx}})
	tl.Add(event.Entry{At: now, ID: "ccc", Event: event.ContainerNotMade{Names: nginx}})
	tl.Add(event.Entry{At: now, ID: "bbb", Event: event.Removed{}})
	for name, want := range map[string]string{"web": "aaa", "nginx": "bbb", "web/nginx": "bbb", "cc": "ccc", "ccc": "ccc"} {
		if id, _, err := tl.Of(name); id != want {
			t.Errorf("%s is %q, not %s: %v", name, id, want, err)
		}
	}
	for _, name := range []string{"", "web/", "other"} {
		if id, _, err := tl.Of(name); err == nil {
			t.Errorf("%q is %s", name, id)
		}
	}
}
