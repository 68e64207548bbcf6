// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"sync"
	"time"

	"berth/internal/base/clock"
)

// wallClock is the clock of the machine, which can be set. It has a lock of its own, because
// instants are made while the world is locked.
type wallClock struct {
	sync.Mutex
	boot   int
	booted time.Time     // in virtual time
	ahead  time.Duration // how far wall time is ahead of virtual time
	set    chan struct{} // closed, and replaced, when the clock is set
	sets   int           // how often it was
}

// SetClock sets the clock of the machine ahead, or back, and tells everybody who waits for that.
func (w *World) SetClock(by time.Duration) {
	w.mu.Lock()
	w.note("*** the clock is set by "+by.String(), "")
	w.mu.Unlock()
	w.clock.Lock()
	defer w.clock.Unlock()
	w.clock.ahead += by
	w.clock.sets++
	close(w.clock.set)
	w.clock.set = make(chan struct{})
}

// ClockSets returns how often the clock was set.
func (w *World) ClockSets() int {
	w.clock.Lock()
	defer w.clock.Unlock()
	return w.clock.sets
}

// Wall returns what the clock of the machine would have shown at an instant of virtual time, had it
// been as right as it is now.
func (w *World) Wall(t time.Time) time.Time {
	w.clock.Lock()
	defer w.clock.Unlock()
	return t.Add(w.clock.ahead)
}

// wall returns what the clock of the machine shows.
func (w *World) wall() time.Time { return w.Wall(time.Now()) }

// Clocks returns the kernel's clocks.
func (w *World) Clocks() clock.Source { return &clocks{of: &w.clock} }

// clocks implements clock.Source.
type clocks struct {
	of   *wallClock
	told int // of how many sets, by Set
}

func (c *clocks) SinceBoot() time.Duration {
	since, _ := c.Read()
	return since
}

func (c *clocks) Read() (time.Duration, time.Time) {
	c.of.Lock()
	defer c.of.Unlock()
	now := time.Now()
	return now.Sub(c.of.booted), now.Add(c.of.ahead)
}

func (c *clocks) Boot() string {
	c.of.Lock()
	defer c.of.Unlock()
	return fmt.Sprint("boot", c.of.boot)
}

func (c *clocks) Set(ctx context.Context) error {
	c.of.Lock()
	set, sets := c.of.set, c.of.sets
	c.of.Unlock()
	if sets != c.told {
		c.told = sets
		return nil
	}
	select {
	case <-set:
		c.told++
	case <-ctx.Done():
	}
	return nil
}

// reboot begins another boot.
func (c *wallClock) reboot() {
	c.Lock()
	defer c.Unlock()
	c.boot++
	c.booted = time.Now()
}

// at returns the instant that this life gives to one of virtual time.
func (l *Life) at(t time.Time) clock.Instant {
	if t.IsZero() {
		return clock.Instant{}
	}
	return l.Clock.Now().Add(-time.Since(t))
}
