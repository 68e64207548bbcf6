// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/base/retry"

	"github.com/containerd/errdefs"
)

// fake is a store of items in memory, of which each takes a minute to check.
type fake struct {
	mu       sync.Mutex
	unmarked []Item
	synced   map[Item]bool
	marked   map[Item]bool
	below    map[string][]Item
	fail     map[string]error
	noSync   map[string]error // of the next sync alone: the kernel says it once
	noIndex  map[string]error // of the next index
	outcome  map[string]Outcome
	checks   []string
	away     bool
	kill     func() // ends the keeper of the test
}

func (f *fake) Unmarked(context.Context) ([]Item, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return nil, errdefs.ErrUnavailable
	}
	return slices.DeleteFunc(slices.Clone(f.unmarked), func(i Item) bool { return f.marked[i] }), nil
}

func (f *fake) Below(_ context.Context, _, id string) ([]Item, error) { return f.below[id], nil }

func (f *fake) Index(_ context.Context, i Item) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.noIndex[i.ID]
	delete(f.noIndex, i.ID)
	return err
}

func (f *fake) Sync(ctx context.Context, i Item) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced[i] = true
	err := f.noSync[i.ID]
	delete(f.noSync, i.ID)
	return errors.Join(err, ctx.Err())
}

func (f *fake) Mark(_ context.Context, i Item) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i.Kind == Layer && !f.synced[i] {
		return errors.New("marked before it was synced")
	}
	f.marked[i] = true
	return nil
}

func (f *fake) Check(ctx context.Context, i Item, idle bool) (Outcome, error) {
	took := time.Hour
	if !idle {
		took = time.Minute
	}
	if !retry.Sleep(ctx.Done(), took) {
		return "", ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checks = append(f.checks, i.ID)
	if err := f.fail[i.ID]; err != nil {
		return "", err
	}
	if o := f.outcome[i.ID]; o != "" {
		return o, nil
	}
	return Whole, nil
}

func (f *fake) count(m map[Item]bool) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(m)
}

var (
	base = Item{Kind: Layer, Snapshotter: "s", ID: "base", Made: "1"}
	mid  = Item{Kind: Layer, Snapshotter: "s", ID: "mid", Made: "1"}
	top  = Item{Kind: Layer, Snapshotter: "s", ID: "top", Made: "1"}
	far  = Item{Kind: Layer, Snapshotter: "s", ID: "far", Made: "1"}
)

// keep runs a keeper in virtual time, after an unclean boot or not.
func keep(t *testing.T, unclean bool, test func(t *testing.T, k *Keeper, f *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if _, err := openBoot(dir, "a", ""); err != nil {
			t.Fatal(err)
		}
		id := "a"
		if unclean {
			id = "b"
		}
		boot, err := openBoot(dir, id, "")
		if err != nil {
			t.Fatal(err)
		}
		f := &fake{
			unmarked: []Item{far, base, mid, top},
			synced:   map[Item]bool{},
			marked:   map[Item]bool{},
			below:    map[string][]Item{"base": {base}, "mid": {base, mid}, "top": {base, mid, top}, "far": {far}, "old": {{Kind: Layer, Snapshotter: "s", ID: "old"}}},
			fail:     map[string]error{},
			outcome:  map[string]Outcome{},
			noSync:   map[string]error{},
			noIndex:  map[string]error{},
		}
		k := NewKeeper(Config{Store: f, Items: NewItems(boot), Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := k.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		f.kill = func() {
			cancel()
			<-ended
		}
		defer f.kill()
		test(t, k, f)
	})
}

// PROPERTIES 39: what is new gets the mark once it is synced, and nothing is synced while images are
// made.
func TestWhatIsNewIsSyncedAndThenMarked(t *testing.T) {
	keep(t, false, func(t *testing.T, k *Keeper, f *fake) {
		done := k.Busy()
		time.Sleep(30 * time.Second)
		if n := f.count(f.synced); n != 0 {
			t.Errorf("%d synced while an image is made", n)
		}
		done()
		if err := k.Trust(t.Context(), "s", "top"); err != nil {
			t.Error(err)
		}
		time.Sleep(quiet + time.Second)
		if n := f.count(f.marked); n != 4 {
			t.Errorf("%d of 4 have the mark", n)
		}
		defer k.Busy()() // for ever
		f.mu.Lock()
		f.unmarked = append(f.unmarked, Item{Kind: Blob, ID: "new"})
		f.mu.Unlock()
		k.items.Changed()
		time.Sleep(latest + 2*quiet)
		if n := f.count(f.marked); n != 5 {
			t.Errorf("%d of 5 have the mark: pulls without end put it off", n)
		}
	})
}

// again runs the keeper of a berth that is started in the given boot, after the one of the test was
// killed. It returns once that has had ten hours.
func again(t *testing.T, k *Keeper, f *fake, id string) *Keeper {
	t.Helper()
	f.kill()
	boot, err := openBoot(filepath.Dir(k.boot.path), id, "")
	if err != nil {
		t.Fatal(err)
	}
	next := NewKeeper(Config{Store: f, Items: NewItems(boot), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Hour)
	defer cancel()
	if err := next.Run(ctx); err != nil {
		t.Error(err)
	}
	return next
}

func (f *fake) has(i Item) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.marked[i]
}

// PROPERTIES 39: the kernel reports a write that has failed once, and a second sync succeeds although
// the data is lost. So what could not be synced does not get the mark in this boot, whoever syncs it,
// unless it is written again; a stop is not a clean one, and the next boot has it checked.
func TestASyncThatHasFailedIsNotTrustedASecondTime(t *testing.T) {
	keep(t, false, func(t *testing.T, k *Keeper, f *fake) {
		var told []Outcome
		k.cfg.Checked = func(i Item, o Outcome) {
			if i == mid {
				told = append(told, o)
			}
		}
		f.mu.Lock()
		f.noSync["mid"] = errors.New("fsync: input/output error")
		f.noIndex["far"] = errors.New("a process that cannot be started")
		f.mu.Unlock()
		time.Sleep(10 * time.Hour)
		if n := f.count(f.marked); n != 3 || f.has(mid) {
			t.Errorf("%d of 3 have the mark, and what could not be synced: %v", n, f.has(mid))
		}
		if !slices.Equal(told, []Outcome{Unsynced}) {
			t.Errorf("told %s", told)
		}
		if err := k.Trust(t.Context(), "s", "top"); err != nil {
			t.Errorf("what is right in memory is not waited for: %v", err)
		}
		for _, later := range []*Keeper{again(t, k, f, "a"), again(t, k, f, "a")} {
			if f.has(mid) || !later.items.Unsynced(mid) {
				t.Error("a berth that was started again in the same boot has given it the mark")
			}
			if err := later.boot.Stopped(); !errors.Is(err, ErrUnsynced) {
				t.Errorf("stopped: %v", err)
			}
			if text, _ := os.ReadFile(later.boot.path); bytes.Contains(text, []byte("clean")) {
				t.Errorf("a clean stop is noted: %s", text)
			}
		}
		next := again(t, k, f, "b")
		if !slices.Equal(f.checks, []string{"mid"}) || !f.has(mid) || next.items.Unsynced(mid) {
			t.Errorf("in the next boot %s were checked, and it has the mark: %v", f.checks, f.has(mid))
		}
		if err := next.boot.Stopped(); err != nil {
			t.Error(err)
		}
	})
}

// What was written again is synced again.
func TestWhatIsWrittenAgainIsSynced(t *testing.T) {
	keep(t, false, func(t *testing.T, k *Keeper, f *fake) {
		f.mu.Lock()
		f.noSync["mid"] = errors.New("fsync: no space left on device")
		f.mu.Unlock()
		time.Sleep(time.Hour)
		if f.has(mid) {
			t.Fatal("it has the mark")
		}
		if err := k.items.Rewrite(t.Context(), mid, func() (bool, error) { return true, nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if !f.has(mid) {
			t.Error("it has no mark")
		}
		if err := k.boot.Stopped(); err != nil {
			t.Error(err)
		}
	})
}

// PROPERTIES 39: what a berth was killed in the middle of, nobody knows the outcome of.
func TestASyncThatWasCutOffIsNotTrusted(t *testing.T) {
	keep(t, false, func(t *testing.T, k *Keeper, f *fake) {
		if err := k.boot.syncing(mid); err != nil { // and killed
			t.Fatal(err)
		}
		again(t, k, f, "a")
		if f.has(mid) || !f.has(top) {
			t.Errorf("marked: %v, the others: %v", f.has(mid), f.has(top))
		}
		f.mu.Lock()
		f.unmarked = slices.DeleteFunc(f.unmarked, func(i Item) bool { return i == mid }) // it is removed
		f.mu.Unlock()
		if last := again(t, k, f, "a"); last.boot.Stopped() != nil {
			t.Error("what has gone keeps the stop from being clean")
		}
	})
}

// PROPERTIES 39: a container waits for the layers that it needs, which are checked at once and the
// lowest first, and for no other. What is not doubted is not waited for.
func TestAContainerWaitsForItsOwnLayers(t *testing.T) {
	keep(t, true, func(t *testing.T, k *Keeper, f *fake) {
		time.Sleep(time.Second) // far is being checked in the background, which takes an hour
		begun := time.Now()
		if err := k.Trust(t.Context(), "s", "old"); err != nil || time.Since(begun) > 0 {
			t.Errorf("what is not doubted: %v after %s", err, time.Since(begun))
		}
		if err := k.Trust(t.Context(), "s", "top"); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 3*time.Minute {
			t.Errorf("it took %s", took)
		}
		if !slices.Equal(f.checks, []string{"base", "mid", "top"}) {
			t.Errorf("checked %s", f.checks)
		}
		if n := f.count(f.marked); n > 0 {
			t.Errorf("%d have the mark", n)
		}
		begun = time.Now()
		if err := k.Trust(t.Context(), "s", "far"); err != nil || time.Since(begun) > time.Minute {
			t.Errorf("what was being checked idly: %v after %s", err, time.Since(begun))
		}
		time.Sleep(time.Hour)
		if k.boot.Doubted() {
			t.Error("it is doubted when everything is checked")
		}
		if n := f.count(f.marked); n != 4 {
			t.Errorf("%d of 4 have the mark", n)
		}
	})
}

// A check that cannot be made is not an answer: it is tried again, and a container gets an error
// that says so.
func TestACheckThatCannotBeMadeIsMadeAgain(t *testing.T) {
	keep(t, true, func(t *testing.T, k *Keeper, f *fake) {
		f.mu.Lock()
		f.fail["mid"] = errors.New("the disk does not answer")
		f.outcome["far"] = Removed
		f.mu.Unlock()
		if err := k.Trust(t.Context(), "s", "top"); !errdefs.IsUnavailable(err) {
			t.Errorf("%v", err)
		}
		if err := k.Trust(t.Context(), "s", "base"); err != nil {
			t.Errorf("what is below is right: %v", err)
		}
		if err := k.Trust(t.Context(), "s", "far"); !errdefs.IsNotFound(err) {
			t.Errorf("what was lost: %v", err)
		}
		time.Sleep(5 * time.Hour)
		if !k.boot.Doubted() {
			t.Error("nothing is doubted, and mid was never checked")
		}
		f.mu.Lock()
		delete(f.fail, "mid")
		f.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := k.Trust(ctx, "s", "top"); !errdefs.IsUnavailable(err) {
			t.Errorf("it was not waited for: %v", err)
		}
		if err := k.Trust(t.Context(), "s", "top"); err != nil {
			t.Error(err)
		}
	})
}
