// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func cakes() *Budget {
	return New(Limits{
		Name: "cakes",
		What: "pieces of cake",
		Node: 10,
		Pod:  6,
		Sure: 2,
	})
}

// PROPERTIES 38
func TestAPodHasNoMoreThanItsShare(t *testing.T) {
	b := cakes()
	if err := b.Take("a", 6); err != nil {
		t.Fatal(err)
	}
	err := b.Take("a", 1)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "pod a has 6 of the 6 pieces of cake that one pod may have") {
		t.Errorf("got %v", err)
	}
	if got := b.TakeSome("b", 9); got != 4 {
		t.Errorf("b takes %d of the 4 that are left", got)
	}
	b.Give("a", 1)
	if err := b.Take("a", 2); err == nil {
		t.Error("a takes more than it gave back")
	}
	if u := b.Usage(); u.Used != 9 || u.Refused != 2 {
		t.Errorf("got %+v", u)
	}
}

// PROPERTIES 38: others do not take the last of it.
func TestEachPodHasSomeForSure(t *testing.T) {
	b := cakes()
	for _, pod := range []string{"a", "b"} {
		if err := b.Take(pod, 5); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Take("c", 2); err != nil {
		t.Error(err)
	}
	err := b.Take("c", 1)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "all pods together have 12 of the node's 10 pieces of cake, of which pod a has 5") {
		t.Errorf("got %v", err)
	}
	if got := b.TakeSome("d", 5); got != 2 {
		t.Errorf("d takes %d", got)
	}
	b.TakeAnyway("c", 100)
	if got := b.TakeSome("c", 1); got != 0 {
		t.Errorf("c takes %d more", got)
	}
}

func TestNothingIsKeptOfAPodThatHasNothing(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	random := rand.New(rand.NewSource(seed))
	b, has := cakes(), map[string]int64{}
	for range 10_000 {
		pod := string(rune('a' + random.Intn(5)))
		if n := random.Int63n(4); random.Intn(2) == 0 {
			if b.Take(pod, n) == nil {
				has[pod] += n
			}
		} else if has[pod] > 0 {
			n = min(n, has[pod])
			b.Give(pod, n)
			has[pod] -= n
		}
		var all int64
		for p, n := range has {
			if n > b.limits.Pod || b.Of(p) != n {
				t.Fatalf("%s has %d, and is said to have %d", p, n, b.Of(p))
			}
			all += n
		}
		if u := b.Usage(); u.Used != all || u.Used > u.Node+5*u.Sure {
			t.Fatalf("%d are used, and %d are said to be", all, u.Used)
		}
	}
	for p, n := range has {
		b.Give(p, n)
	}
	if len(b.pods) != 0 || b.used != 0 {
		t.Errorf("%d are used by %v", b.used, b.pods)
	}
}
