// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Source is the kernel's clocks.
type Source interface {
	// SinceBoot returns the time since boot, which goes on while the machine is suspended.
	SinceBoot() time.Duration
	// Read returns the time since boot and the wall time of one moment.
	Read() (sinceBoot time.Duration, wall time.Time)
	// Boot returns the ID of this boot.
	Boot() string
	// Set waits until the wall clock has been set since the call before, or may have been. It returns
	// an error if it cannot be known.
	Set(ctx context.Context) error
}

const (
	// jitter is how far two readings of one offset may differ. A step by less is not seen, until it
	// adds up with others.
	jitter = time.Millisecond
	// saved is how often the life of a boot is written down. If it ends unforeseen, the next boot
	// leaves room for stamps that may have been made since.
	saved = 5 * time.Minute
	// ending is the same for a berth that was stopped: it makes stamps while it ends.
	ending = 10 * time.Second
	// again is how often the offset is looked at if the kernel cannot tell of a step.
	again = time.Second
)

// Step is a setting of the wall clock.
type Step struct {
	From, To time.Time
	// Away is set if berth was not there: the step is found by the time that the clock shows now.
	Away bool
}

// Clock makes instants. Its methods may be called from any goroutine.
type Clock struct {
	source Source
	path   string
	last   atomic.Int64 // the highest instant that was returned

	steady int64 // where the line was when nothing had passed since this boot
	boots  atomic.Pointer[boots]

	mu   sync.Mutex // of changes to boots, and of the fields below
	away []Step     // while berth was away, until Run tells of them
	told Step       // the last one that Run has told of
	at   Instant    // of that
}

// New makes a clock whose line begins with it, and which remembers nothing. A nil source stands for
// the time of this process, which is never set.
func New(source Source) *Clock {
	c, _ := Open("", source)
	return c
}

// Open makes a clock that goes on with the line in a file, or begins one. The error names the
// part that could not be read or written; the clock goes all the same, and Run writes the file
// again.
func Open(path string, source Source) (*Clock, error) {
	if source == nil {
		source = process{time.Now()}
	}
	c := &Clock{source: source, path: path}
	var known boots
	var err error
	if path != "" {
		known, err = read(path)
	}
	since, wall := source.Read()
	now := Stamped(wall)
	var at Instant
	if n := len(known) - 1; n >= 0 && known[n].ID == source.Boot() {
		b := known[n]
		at, b.Ended = b.Begin.Add(since), false
		if d := wall.Sub(at.Add(b.Shift).Stamp()); d.Abs() > jitter {
			c.away = append(c.away, Step{at.Add(b.Shift).Stamp(), wall, true})
			b.Shift += d
		}
		known = append(append(boots{}, known[:n]...), b)
	} else {
		begin := now.Add(-since)
		if n >= 0 {
			room := saved
			if known[n].Ended {
				room = ending
			}
			if end := known[n].Seen.Add(room + 1); begin.Before(end) {
				begin = end
			}
			if before := known[n].Seen.Add(known[n].Shift).Stamp(); wall.Before(before) {
				c.away = append(c.away, Step{before, wall, true})
			}
		}
		at = begin.Add(since)
		known = append(append(boots{}, known[max(0, len(known)+1-maxBoots):]...), boot{
			ID:    source.Boot(),
			Begin: begin,
			Shift: now.Sub(at),
		})
	}
	known[len(known)-1].Seen = at
	c.steady = at.Add(-since).ns
	c.boots.Store(&known)
	if path != "" {
		if werr := known.write(path); err == nil {
			err = werr
		}
	}
	return c, err
}

// Now returns the instant of now. It is not before any that was returned.
func (c *Clock) Now() Instant { return c.next(0) }

// Next returns an instant of now that is after each that was returned: of two things that are made
// one after the other, the second is the later one.
func (c *Clock) Next() Instant { return c.next(1) }

func (c *Clock) next(above int64) Instant {
	since := c.source.SinceBoot()
	for {
		last := c.last.Load()
		ns := max(c.steady+int64(since), last+above)
		if ns == last || c.last.CompareAndSwap(last, ns) {
			return Instant{ns}
		}
	}
}

// Since returns how long ago an instant was.
func (c *Clock) Since(i Instant) time.Duration { return c.Now().Sub(i) }

// Age returns how much of the time since i the node has lived.
func (c *Clock) Age(i Instant) time.Duration { return c.boots.Load().lived(i, c.Now()) }

// Wall returns the wall time of an instant, for people and for CRI, as it is known now; the zero
// Time for none.
func (c *Clock) Wall(i Instant) time.Time {
	if i.IsZero() {
		return time.Time{}
	}
	return c.boots.Load().wallOf(i)
}

// Shown returns an instant whose stamp is the wall time of i, as it is known now: for a program
// that knows no instants.
func (c *Clock) Shown(i Instant) Instant { return Stamped(c.Wall(i)) }

// Instant returns the instant of a wall time that another program has stamped, not later than now;
// none for the zero Time and for the epoch, which stand for no time. It is as right as the clock
// was then.
func (c *Clock) Instant(t time.Time) Instant {
	if t.Unix() <= 0 {
		return Instant{}
	}
	return c.Past(c.boots.Load().instantOf(t))
}

// Past returns an instant that is not later than now. One that is on record may be: a berth that
// knew no instants has stamped it before the clock was set back.
func (c *Clock) Past(i Instant) Instant { return Earlier(i, c.Now()) }

// Plain reports whether wall time and the stamps of instants are the same, because the clock was
// never set.
func (c *Clock) Plain() bool { return c.boots.Load().plain() }

// Version returns a value that changes whenever Wall does.
func (c *Clock) Version() any { return c.boots.Load() }

// Look compares the wall clock with the line. It reports whether it was set since the last time.
func (c *Clock) Look() (Step, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, wall := c.source.Read()
	at := Instant{c.steady + int64(since)}
	known := append(boots{}, *c.boots.Load()...)
	b := &known[len(known)-1]
	from := at.Add(b.Shift).Stamp()
	d := wall.Sub(from)
	if d.Abs() <= jitter {
		return Step{}, false
	}
	b.Shift, b.Seen = b.Shift+d, at
	c.boots.Store(&known)
	return Step{From: from, To: wall.UTC()}, true
}

// Told returns the last step that Run has told of, and when; none if the clock was not set.
func (c *Clock) Told() (Step, Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told, c.at
}

// save writes the file.
func (c *Clock) save(ended bool) error {
	if c.path == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := append(boots{}, *c.boots.Load()...)
	b := &known[len(known)-1]
	b.Seen, b.Ended = c.Now(), ended
	return known.write(c.path)
}

// Run calls step whenever the wall clock is set, and for each time that it was while berth was
// away, and writes down how long this boot has lived, until ctx ends. failed is called if the
// clock cannot be watched or the file cannot be written, once for a row of failures.
func (c *Clock) Run(ctx context.Context, step func(Step), failed func(error)) {
	c.mu.Lock()
	away := c.away
	c.away = nil
	c.mu.Unlock()
	tell := func(s Step) {
		c.mu.Lock()
		c.told, c.at = s, c.Now()
		c.mu.Unlock()
		step(s)
	}
	for _, s := range away {
		tell(s)
	}
	set := make(chan error)
	go func() {
		defer close(set)
		for ctx.Err() == nil {
			select {
			case set <- c.source.Set(ctx):
			case <-ctx.Done():
			}
		}
	}()
	tick := time.NewTicker(saved)
	defer tick.Stop()
	var blind, unsaved bool
	for {
		var err error
		select {
		case <-ctx.Done():
			_ = c.save(true)
			return
		case <-tick.C:
		case err = <-set:
		}
		if err != nil && ctx.Err() == nil {
			if !blind {
				failed(err)
			}
			select { // and look all the same
			case <-time.After(again):
			case <-ctx.Done():
			}
		}
		blind = err != nil
		if s, stepped := c.Look(); stepped {
			tell(s)
		}
		if err := c.save(false); err != nil && !unsaved {
			unsaved = true
			failed(err)
		} else if err == nil {
			unsaved = false
		}
	}
}

// process is the time of this process.
type process struct{ began time.Time }

func (p process) SinceBoot() time.Duration { return time.Since(p.began) }

func (p process) Read() (time.Duration, time.Time) {
	since := time.Since(p.began)
	return since, p.began.Add(since)
}

func (p process) Boot() string { return "process" }

func (p process) Set(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
