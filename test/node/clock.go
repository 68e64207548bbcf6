// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// tick is how long the clock sleeps between two looks at the time, and grace is how late it may
	// wake up before that counts.
	tick, grace = 5 * time.Millisecond, 2 * time.Millisecond
	// flush is the time between two writes to the disk, and slowFlush is how long one may take
	// before that counts.
	flush, slowFlush = 50 * time.Millisecond, 20 * time.Millisecond
)

const (
	// attempts is how often something is measured at most until it is within its limit.
	attempts = 3
	// loose and least are the bound on a machine that does not let it be measured: that many limits,
	// and no less. A wait for something that hangs takes longer.
	loose, least = 10, 10 * time.Second
)

// Span is the time that something took.
type Span struct {
	From, To time.Time
	// Free is when berth could begin with it. A delay by the machine before that is not blamed on
	// berth. Zero is From.
	Free time.Time
}

func (s Span) took() time.Duration { return s.To.Sub(s.From) }

// Within fails the test if the span that try measures is longer than limit, each time that it is
// measured. A machine that has other things to do does not make it fail: if a sleep or a write to
// the disk was held up at the last time for so long that berth cannot be blamed, a looser limit
// holds.
func (n *Node) Within(limit time.Duration, what string, try func() Span) {
	n.t.Helper()
	n.MostWithin(limit, 0, what, func() []Span { return []Span{try()} })
}

// MostWithin is [Node.Within] for many measurements, some of which may take longer.
func (n *Node) MostWithin(limit time.Duration, exceptions int, what string, try func() []Span) {
	n.t.Helper()
	for attempt := 1; ; attempt++ {
		c, err := startClock(n.Dir)
		if err != nil {
			n.t.Fatal(err)
		}
		spans := try()
		if err := c.close(); err != nil {
			n.t.Fatal(err)
		}
		late, blamed := c.judge(spans, limit)
		slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.took(), b.took()) })
		longest := spans[len(spans)-1].took()
		text := fmt.Sprintf("%s: %s", what, longest)
		if len(spans) > 1 {
			text = fmt.Sprintf("%s at most, %s in the median of %d", text, spans[len(spans)/2].took(), len(spans))
		}
		switch {
		case late <= exceptions:
			n.t.Log(text)
			return
		case attempt < attempts:
			n.t.Logf("%s; %d took longer than %s, %d of them although the machine was free: it is measured again", text, late, limit, blamed)
			continue
		case blamed > exceptions:
			n.t.Errorf("%s; %d took longer than %s, although the machine was free", text, blamed, limit)
		case longest > max(loose*limit, least):
			n.t.Errorf("%s, also for a machine that does not let it be measured", text)
		default:
			n.t.Logf("%s; the machine does not let it be measured", text)
		}
		return
	}
}

// clock measures how long something took on a machine that has other things to do. It is the
// control of such a measurement: a thread that only sleeps, and one that only writes a page to the
// node's disk now and then, which is the least work for reporting an exit. While either is held up,
// so is the machine, regardless of berth, and the clock stands still.
type clock struct {
	stop    chan struct{}
	threads sync.WaitGroup
	err     error

	mu     sync.Mutex
	stalls []Span // the times during which the machine did not let the clock go on
}

// startClock starts a clock that writes to a file in dir.
func startClock(dir string) (*clock, error) {
	f, err := os.CreateTemp(dir, "clock")
	if err != nil {
		return nil, err
	}
	c := &clock{stop: make(chan struct{})}
	c.threads.Go(func() {
		for c.sleep(tick) {
		}
	})
	c.threads.Go(func() {
		defer func() { c.err = errors.Join(c.err, f.Close(), os.Remove(f.Name())) }()
		for page := make([]byte, 4096); c.sleep(flush); {
			began := time.Now()
			if _, err := f.WriteAt(page, 0); err != nil {
				c.err = err
				return
			}
			if err := f.Sync(); err != nil {
				c.err = err
				return
			}
			c.held(began.Add(slowFlush), time.Now())
		}
	})
	return c, nil
}

// sleep sleeps and notes if it woke up late. It reports false once the clock was stopped.
func (c *clock) sleep(d time.Duration) bool {
	due := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.stop:
		return false
	case <-timer.C:
	}
	c.held(due.Add(grace), time.Now())
	return true
}

// held notes that the machine held the clock up, unless that was for no time.
func (c *clock) held(from, to time.Time) {
	if !to.After(from) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalls = append(c.stalls, Span{From: from, To: to})
}

// close ends the clock, which has then noted everything.
func (c *clock) close() error {
	close(c.stop)
	c.threads.Wait()
	return c.err
}

// judge counts the spans longer than limit, and how many of them are also too long from the time
// when berth could begin, and without the times at which the clock stood still, which must not be
// most of the span. The clock has been closed.
func (c *clock) judge(spans []Span, limit time.Duration) (late, blamed int) {
	for _, s := range spans {
		if s.took() <= limit {
			continue
		}
		late++
		if s.Free.After(s.From) {
			s.From = s.Free
		}
		if own := s.took() - covered(c.stalls, s.From, s.To); own > limit && own > s.took()/2 {
			blamed++
		}
	}
	return late, blamed
}

// covered is how much of the time between two instants the spans cover, which may overlap.
func covered(spans []Span, from, to time.Time) time.Duration {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b Span) int { return a.From.Compare(b.From) })
	var sum time.Duration
	for _, s := range spans {
		if s.From.Before(from) {
			s.From = from
		}
		if s.To.After(to) {
			s.To = to
		}
		if s.To.After(s.From) {
			sum += s.took()
			from = s.To
		}
	}
	return sum
}
