// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// Limits are the size of a budget and of a pod's share, in the unit of the caller.
type Limits struct {
	Name string // for metrics
	What string // for people, in the plural: "exec processes"
	Node int64  // for all pods together
	Pod  int64  // for one pod
	Sure int64  // for each pod, even if the others have everything
}

// Budget is one resource that all pods share. Its methods may be called from any goroutine.
type Budget struct {
	limits Limits

	mu      sync.Mutex
	used    int64
	pods    map[string]int64 // the use of each pod; pods without any are absent
	refused uint64
}

// Usage is a budget as it is now.
type Usage struct {
	Limits
	Used    int64
	Refused uint64 // how often something was refused since berth started
}

// New makes a budget.
func New(l Limits) *Budget { return &Budget{limits: l, pods: map[string]int64{}} }

// Take takes n for a pod, or nothing, which is a refusal. The caller gives it back. The error is
// ErrResourceExhausted.
func (b *Budget) Take(pod string, n int64) error {
	err := b.Try(pod, n)
	if err != nil {
		b.Refuse()
	}
	return err
}

// Try is Take for a caller that tries again, and calls Refuse if it gives up: a wait is not a
// refusal, however often it looks.
func (b *Budget) Try(pod string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.pods[pod]
	if n <= b.roomLocked(has) {
		b.addLocked(pod, n)
		return nil
	}
	l := b.limits
	if has+n > l.Pod {
		return fmt.Errorf("pod %s has %d of the %d %s that one pod may have; end some, or try again when some have ended: %w",
			pod, has, l.Pod, l.What, errdefs.ErrResourceExhausted)
	}
	most, its := b.mostLocked()
	return fmt.Errorf("all pods together have %d of the node's %d %s, of which pod %s has %d; end some, or try again when some have ended: %w",
		b.used, l.Node, l.What, most, its, errdefs.ErrResourceExhausted)
}

// Refuse counts a refusal.
func (b *Budget) Refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// TakeSome takes up to n for a pod, and returns how much. The caller gives it back, and calls
// Refuse once if it goes without the rest.
func (b *Budget) TakeSome(pod string, n int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	got := max(0, min(n, b.roomLocked(b.pods[pod])))
	b.addLocked(pod, got)
	return got
}

// TakeAnyway takes n for a pod though there may not be as much: it is used already. The caller
// gives it back.
func (b *Budget) TakeAnyway(pod string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(pod, n)
}

// Give gives back n that a pod has.
func (b *Budget) Give(pod string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(pod, -n)
}

// Of returns the use of a pod.
func (b *Budget) Of(pod string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pods[pod]
}

// Room returns how much a pod may take now.
func (b *Budget) Room(pod string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, b.roomLocked(b.pods[pod]))
}

// Usage returns the budget as it is now.
func (b *Budget) Usage() Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Usage{b.limits, b.used, b.refused}
}

// roomLocked returns how much more a pod may take that has so much already.
func (b *Budget) roomLocked(has int64) int64 {
	return min(b.limits.Pod-has, max(b.limits.Node-b.used, b.limits.Sure-has))
}

func (b *Budget) addLocked(pod string, n int64) {
	b.used += n
	if b.pods[pod] += n; b.pods[pod] == 0 {
		delete(b.pods, pod)
	}
}

// mostLocked returns the pod that has the most.
func (b *Budget) mostLocked() (pod string, n int64) {
	for p, has := range b.pods {
		if has > n || has == n && p < pod {
			pod, n = p, has
		}
	}
	return pod, n
}
