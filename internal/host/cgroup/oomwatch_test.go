// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
)

// limited makes a group below parent, or of its own, with a memory limit; 0 for none.
func limited(t *testing.T, parent string, limit int) string {
	t.Helper()
	dir := parent
	if dir == "" {
		dir = group(t)
	} else {
		dir = filepath.Join(parent, "child")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
	}
	name := "memory.limit_in_bytes"
	if V2() {
		name = "memory.max"
	}
	if limit > 0 {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(limit)), 0); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// PROPERTIES 36: an OOM kill is noticed while the group lives, and whose limit was reached is
// known.
func TestOOMKillsAreNoticed(t *testing.T) {
	const limit = 8 << 20
	noted := make(chan string, 1000)
	w, err := NewOOMWatch()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := w.Run(t.Context(), func(ids []string) {
			for _, id := range ids {
				select {
				case noted <- id:
				default:
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer w.Close()

	own, pod := limited(t, "", limit), limited(t, "", limit)
	if V2() {
		if err := os.WriteFile(filepath.Join(pod, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			t.Fatal(err)
		}
	}
	member, quiet := limited(t, pod, 0), limited(t, "", limit)
	for _, dir := range []string{own, member, quiet} {
		if _, err := w.Watch(dir, dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		dir     string
		reached int // the level whose limit was reached
	}{{own, 0}, {member, 1}, {own, 0}} {
		before, err := LimitHits(tc.dir)
		if err != nil {
			t.Fatal(err)
		}
		kills, err := OOMKills(tc.dir)
		if err != nil {
			t.Fatal(err)
		}
		_ = join(t, tc.dir, "/bin/sh", "-c", "x=$(tail /dev/zero)").Wait()
		for id := range noted { // until the test's time is over
			if id == quiet && V2() {
				t.Error("a group without a kill was noted")
			}
			if n, err := OOMKills(tc.dir); id == tc.dir && (err != nil || n > kills) {
				break
			}
		}
		after, err := LimitHits(tc.dir)
		if err != nil || len(after) != len(before) {
			t.Fatal(before, after, err)
		}
		level := 0
		for level < len(after) && after[level] == before[level] {
			level++
		}
		if level != tc.reached {
			t.Errorf("the limits were reached %v times, and then %v: the first is %d, want %d", before, after, level, tc.reached)
		}
	}
	w.Forget(own)
	w.Forget(own)
	if len(w.dirs) != 2 || V2() && len(w.ids) != 2 {
		t.Errorf("%v, %v", w.dirs, w.ids)
	}
	gone := filepath.Join(own, "gone")
	if _, err := w.Watch("gone", gone); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if _, err := LimitHits(gone); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
}
