// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// flushed has a container write and waits until that is in its log.
func (c *container) flushed(text string) {
	c.t.Helper()
	c.write(text)
	must(c.t, c.log.Flush(c.t.Context()))
}

// PROPERTIES 53 and 23: a log was truncated while berth was there. The next line made a hole of NULs that
// was as long as the log had been.
func TestALogThatIsTruncatedGoesOnAtItsEnd(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		c := start(t, o, host{})
		for i := range 3 {
			c.flushed(fmt.Sprintf("before %d, %s\n", i, strings.Repeat("x", 10_000)))
			must(t, os.Truncate(c.o.path(), 0))
			c.flushed(fmt.Sprintf("after %d\n", i))
			c.expect(fmt.Sprintf("after %d\n", i))
		}
		if !c.reports.contain("log truncated by another process") || len(c.reports.all) != 1 {
			t.Errorf("reported %q", c.reports.all)
		}
		c.restart(host{})
		c.write("the next berth\n")
		c.end()
		c.expect("after 2\nthe next berth\n")
	})
}

// PROPERTIES 53: the same under load, by logrotate's copytruncate, and with kills of berth: each line of the
// log is whole.
func TestALogThatIsTruncatedUnderLoadHasNoHole(t *testing.T) {
	r := seeded(t)
	dir := t.TempDir()
	o := childOptions(dir)
	o.LoggerProgram = logger
	out, errs := away(t, o)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = fmt.Fprintf(out, "line %d\n", i)
			}
		}
	})
	for range 20 {
		pumpFor(t, dir, time.Duration(5+r.IntN(25))*time.Millisecond)
		must(t, os.Truncate(o.path(), 0))
	}
	wg.Go(func() {
		for range 200 {
			must(t, os.Truncate(o.path(), 0))
		}
		close(stop)
	})
	drain(t, o, func() {
		wg.Wait()
		_, _ = out.Close(), errs.Close()
	})
	b, err := os.ReadFile(o.path())
	if err != nil || bytes.IndexByte(b, 0) >= 0 {
		t.Errorf("%v, or NULs in a log of %d bytes", err, len(b))
	}
	parse(t, o.path())
}

// hasty is a disk on which somebody truncates the log after its length was looked at.
type hasty struct {
	host
	truncate func()
}

type hastyFile struct {
	file
	truncate func()
}

func (h hasty) open(dir, path string) (file, uint64, int64, error) {
	f, inode, size, err := h.host.open(dir, path)
	return hastyFile{f, h.truncate}, inode, size, err
}

func (f hastyFile) WriteAt(b []byte, at int64) (int, error) {
	f.truncate()
	return f.file.WriteAt(b, at)
}

// PROPERTIES 53: a log that is truncated between the look at its length and the write begins with the lines
// of that write, and not with a hole.
func TestALogThatIsTruncatedInTheMomentOfAWriteHasNoHole(t *testing.T) {
	o := options(t)
	now := false
	c := start(t, o, hasty{truncate: func() {
		if now {
			now = false
			must(t, os.Truncate(o.path(), 0))
		}
	}})
	c.flushed(strings.Repeat("x", 5000) + "\n")
	now = true
	c.flushed("after\n")
	c.expect("after\n")
	c.restart(host{})
	c.write("the next berth\n")
	c.end()
	c.expect("after\nthe next berth\n")
}

// PROPERTIES 53: a log that was deleted, alone or with its directory, is made anew with the next line: berth
// went on writing to a file that nobody could read.
func TestALogThatIsDeletedIsMadeAnew(t *testing.T) {
	for _, what := range []string{"the log", "its directory"} {
		t.Run(what, func(t *testing.T) {
			ways(t, func(t *testing.T, o Options) {
				c := start(t, o, host{})
				c.flushed("before\n")
				if what == "the log" {
					must(t, os.Remove(c.o.path()))
				} else {
					must(t, os.RemoveAll(c.o.LogDirectory))
				}
				c.flushed("after\n")
				c.expect("after\n")
				if !c.reports.contain("log deleted by another process") {
					t.Errorf("reported %q", c.reports.all)
				}
				c.end()
				c.expect("after\n")
			})
		})
	}
}

// A write that failed half-way is not cut off a log that somebody else has truncated meanwhile: that would
// make it longer, by a hole.
func TestALogThatIsTruncatedWhileItsDiskIsFullHasNoHole(t *testing.T) {
	d := &badDisk{}
	c := start(t, options(t), d)
	c.flushed(strings.Repeat("x", 5000) + "\n")
	d.fill(true)
	c.write("waits\n")
	until(t, "the log fails", func() bool { return c.log.Stats().LastErr != nil })
	must(t, os.Truncate(c.o.path(), 0))
	d.fill(false)
	c.end()
	c.expect("waits\n")
}

// A log that is moved away, and not reopened yet, is the one that the lines go to: that is how the kubelet
// rotates logs.
func TestALogThatIsMovedAwayIsWrittenUntilItIsReopened(t *testing.T) {
	c := start(t, options(t), host{})
	c.flushed("one\n")
	must(t, os.Rename(c.o.path(), c.o.path()+".1"))
	c.flushed("two\n")
	if _, err := os.Stat(c.o.path()); err == nil {
		t.Error("it was made anew before it was reopened")
	}
	must(t, c.log.Reopen(t.Context()))
	c.write("three\n")
	c.end()
	c.expect("three\n")
	equal(t, "stdout", parse(t, c.o.path()+".1")["stdout"], []byte("one\ntwo\n"))
}
