// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkLook measures one question of the audit, which asks it for everything that runs.
func BenchmarkLook(b *testing.B) {
	w := watcherOfMany(b, 1500)
	i := 0
	for b.Loop() {
		i++
		if a, watched := w.Look(fmt.Sprint("c", i%1500)); a != Alive || !watched {
			b.Fatal(a, watched)
		}
	}
}

// BenchmarkWatch measures the watching and forgetting of one process among many.
func BenchmarkWatch(b *testing.B) {
	w := watcherOfMany(b, 1500)
	p := Process{Pid: uint32(os.Getpid())}
	for b.Loop() {
		if _, err := w.Watch("c", p); err != nil {
			b.Fatal(err)
		}
		w.Forget("c")
	}
}

func watcherOfMany(b *testing.B, n int) *Watcher {
	b.Helper()
	w, err := New(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.close)
	for i := range n {
		if _, err := w.Watch(fmt.Sprint("c", i), Process{Pid: uint32(os.Getpid())}); err != nil {
			b.Fatal(err)
		}
	}
	return w
}
