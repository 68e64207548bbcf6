// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// shapes are kinds of output, in pieces that are written one by one.
func shapes() map[string][]string {
	unfinished := make([]string, 4000)
	alternating := make([]string, 0, 8000)
	for i := range unfinished {
		unfinished[i] = fmt.Sprintf("%s\n%d %s", strings.Repeat("x", 3000), i, strings.Repeat("y", 1000))
		alternating = append(alternating, strings.Repeat("a", 4000)+"\n", fmt.Sprint(i))
	}
	burst := strings.Repeat(strings.Repeat("b", 99)+"\n", 20000)
	return map[string][]string{
		"reads that always end in an unfinished line": unfinished,
		"one giant line":            {strings.Repeat("z", 16<<20)},
		"no newline at all, slowly": strings.Split(strings.Repeat("0123456789,", 40000), ","),
		"nothing but newlines":      {strings.Repeat("\n", 1<<20)},
		"bursts":                    {burst, "x", burst, "\n", burst, "end"},
		"lines and pieces of lines": alternating,
	}
}

// spooled is how much of the disk the spools of a container take.
func spooled(t *testing.T, o Options) (bytes int64) {
	t.Helper()
	for _, name := range []string{"stdout.spool", "stderr.spool"} {
		var st unix.Stat_t
		if err := unix.Stat(o.Dir+"/"+name, &st); err != nil {
			t.Fatal(err)
		}
		bytes += st.Blocks * 512
	}
	return bytes
}

// PROPERTIES 20: whatever the shape of its output, a container's spool takes no more of the
// runtime directory than a round does. It took all of the output when no read ended with a line.
func TestTheSpoolIsBoundedForEveryShapeOfOutput(t *testing.T) {
	const most = 2 * (chunk + DefaultMaxLine + 64<<10 + 4*page)
	for name, pieces := range shapes() {
		t.Run(name, func(t *testing.T) {
			c := start(t, options(t), host{})
			var wg sync.WaitGroup
			done := make(chan struct{})
			var largest int64
			wg.Go(func() {
				for {
					largest = max(largest, spooled(t, c.o))
					select {
					case <-done:
						return
					default:
					}
				}
			})
			for _, p := range pieces {
				c.write(p)
			}
			if err := c.log.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if rest := spooled(t, c.o); rest > 2*2*page {
				t.Errorf("%d bytes stay in the spool when all is logged", rest)
			}
			close(done)
			wg.Wait()
			if largest > most {
				t.Errorf("the spool took %d bytes, it may take %d", largest, most)
			}
			c.end()
			c.expect(strings.Join(pieces, ""))
		})
	}
}

// PROPERTIES 20: the same where a file system cannot make holes: an unfinished line is split once
// in a while, so that the spool can be emptied.
func TestTheSpoolIsBoundedWithoutHoles(t *testing.T) {
	for name, pieces := range shapes() {
		t.Run(name, func(t *testing.T) {
			c := start(t, options(t), host{})
			c.log.turn <- struct{}{}
			for _, s := range c.log.streams {
				s.noPunch = true
			}
			<-c.log.turn
			for _, p := range pieces {
				c.write(p)
				if n := spooled(t, c.o); n > spoolSizeNoPunch+2*chunk {
					t.Fatalf("the spool takes %d bytes", n)
				}
			}
			c.end()
			c.expect(strings.Join(pieces, ""))
		})
	}
}

// PROPERTIES 20: a runtime directory without room makes the output wait, and does not end its
// pump. It ended it for good.
func TestAFullRuntimeDirectoryLosesNothing(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		c := &container{t: t, o: o}
		c.o.Note = c.reports.add
		l, err := Create(c.o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Remove(); c.run.Wait() })
		var full atomic.Bool
		var refused atomic.Int64
		full.Store(true)
		for _, s := range l.streams {
			s.splice = func(from, to int, offset int64) (int64, error) {
				if full.Load() {
					refused.Add(1)
					return 0, unix.ENOSPC
				}
				return splice(from, to, offset)
			}
		}
		c.use(l)
		c.out, c.err = shim(t, l)
		if err := l.Started(); err != nil {
			t.Fatal(err)
		}
		c.write("hello\nno end")
		until(t, "the spool is full", func() bool { return refused.Load() > 2 })
		if n := refused.Load(); n > 20 {
			t.Errorf("tried %d times within moments", n)
		}
		if !c.reports.contain("output cannot be logged, and waits: no space left on device [stream=stdout]") {
			t.Errorf("reported %q", c.reports.all)
		}
		full.Store(false)
		c.end()
		c.expect("hello\nno end")
	})
}

// What a berth left in a spool before there was a bound may be large.
func TestALargeSpoolOfAnEarlierBerthIsLogged(t *testing.T) {
	c := start(t, options(t), host{})
	c.write("seen ")
	until(t, "it is in the spool", func() bool { return c.log.bytes.Load() == 5 })
	_ = c.log.Close()
	c.run.Wait()
	f, err := os.OpenFile(c.o.Dir+"/stdout.spool", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	left := strings.Repeat(strings.Repeat("w", 1234)+"\n", 10000)
	_, _ = f.WriteString(left)
	_ = f.Close()
	l, err := Open(c.o)
	if err != nil {
		t.Fatal(err)
	}
	c.use(l)
	c.end()
	c.expect("seen " + left)
}

// A kill between the steps by which a spool is emptied: the next berth finishes them, and nothing
// is logged twice or lost.
func TestASpoolThatWasBeingEmptied(t *testing.T) {
	for _, truncated := range []bool{false, true} {
		t.Run(fmt.Sprint("truncated ", truncated), func(t *testing.T) {
			c := start(t, options(t), host{})
			c.write("before\n")
			if err := c.log.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			_ = c.log.Close()
			c.run.Wait()
			l, err := Open(c.o)
			if err != nil {
				t.Fatal(err)
			}
			l.streams[0].resetting = true
			if err := l.out.save(); err != nil {
				t.Fatal(err)
			}
			if truncated {
				if err := l.streams[0].spool.Truncate(0); err != nil {
					t.Fatal(err)
				}
			}
			_ = l.Close()
			if l, err = Open(c.o); err != nil {
				t.Fatal(err)
			}
			c.use(l)
			c.write("after\n")
			c.end()
			c.expect("before\nafter\n")
		})
	}
}
