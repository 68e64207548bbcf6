// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// asideFirst is for how long a peer is left alone after a failure. It doubles with each further
	// one in a row, up to asideLongest, which is also the wait after a lie.
	asideFirst   = 30 * time.Second
	asideLongest = 30 * time.Minute
)

// asides are the peers that are left alone for a while.
type asides struct {
	mu   sync.Mutex
	till map[netip.AddrPort]aside
}

type aside struct {
	until    time.Time
	failures int
}

// put leaves a peer alone, and returns for how long. A peer that is left alone already failed in
// something that was begun before: that does not count twice.
func (a *asides) put(p netip.AddrPort, lied bool) (wait time.Duration, news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	had := a.till[p]
	if now.Before(had.until) && !lied {
		return 0, false
	}
	wait = asideFirst << min(had.failures, 10)
	if lied || wait > asideLongest {
		wait = asideLongest
	}
	if a.till == nil {
		a.till = map[netip.AddrPort]aside{}
	}
	a.till[p] = aside{now.Add(wait), had.failures + 1}
	return wait, true
}

// good forgets the failures of a peer.
func (a *asides) good(p netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if had, ok := a.till[p]; ok && time.Now().After(had.until) {
		delete(a.till, p)
	}
}

// has reports whether a peer is left alone now.
func (a *asides) has(p netip.AddrPort) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().Before(a.till[p].until)
}

// forget forgets all but those for which keep is true.
func (a *asides) forget(keep func(netip.AddrPort) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p := range a.till {
		if !keep(p) {
			delete(a.till, p)
		}
	}
}
