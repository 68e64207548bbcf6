// SPDX-License-Identifier: Apache-2.0

package timeline

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// PROPERTIES 15.
func TestWhatHappenedIsReturnedInOrder(t *testing.T) {
	tl := New()
	at := time.Unix(1, 0)
	tl.Add("abc1", at, "made", nil, "took", time.Second)
	tl.Add("abc1", at.Add(1), "ended", errors.New("oops"))
	id, es, err := tl.Of("abc")
	if err != nil || id != "abc1" || len(es) != 2 || es[0].Detail != "took=1s" || es[1].Err != "oops" {
		t.Fatalf("%s %+v %v", id, es, err)
	}
	tl.Add("abc2", at, "made", nil)
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
	tl.Add("a", time.Unix(1, 0), "attempt", errors.New(long), "output", long)
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
		tl.Add(fmt.Sprint("id", i%1500), time.Unix(int64(i), 0), "attempt", nil, "took", time.Second)
	}
}

func TestTheTimelineIsBounded(t *testing.T) {
	tl := New()
	for i := range 3 * maxIDs {
		tl.Add(fmt.Sprint("id", i), time.Unix(int64(i), 0), "x", nil)
	}
	for i := range 3 * maxEntries {
		tl.Add("busy", time.Unix(int64(i), 0), fmt.Sprint(i), nil)
	}
	if len(tl.mu.byID) != maxIDs || tl.mu.used.Len() != maxIDs {
		t.Fatal(len(tl.mu.byID))
	}
	_, es, _ := tl.Of("busy")
	if len(es) != maxEntries+1 || es[0].What != "0" || es[len(es)-1].What != fmt.Sprint(3*maxEntries-1) {
		t.Fatalf("%d entries, %v ... %v", len(es), es[0], es[len(es)-1])
	}
}

// What was removed could be found by its whole ID alone, which nobody knows any more.
func TestWhatWasRemovedIsFoundByItsName(t *testing.T) {
	tl := New()
	now := time.Now()
	tl.Add("aaa", now, "sandbox READY", nil, "name", "web")
	tl.Add("bbb", now, "container CREATED", nil, "name", "web/nginx")
	tl.Add("ccc", now, "container CREATED", nil, "name", "web/nginx")
	tl.Add("bbb", now, "removed", nil)
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
