// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// badDisk is a disk that can be full, and that can freeze: then every call waits until it thaws.
type badDisk struct {
	mu     sync.Mutex
	full   bool
	thawed chan struct{}
	caught int // calls that wait
	opened int
}

func (d *badDisk) fill(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

func (d *badDisk) freeze(t *testing.T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	thawed := make(chan struct{})
	d.thawed = thawed
	t.Cleanup(func() { d.thaw() })
}

func (d *badDisk) thaw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.thawed != nil {
		close(d.thawed)
		d.thawed = nil
	}
}

// pass waits while the disk is frozen, and says how much room there is.
func (d *badDisk) pass() error {
	d.mu.Lock()
	thawed := d.thawed
	if thawed != nil {
		d.caught++
	}
	d.mu.Unlock()
	if thawed != nil {
		<-thawed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return unix.ENOSPC
	}
	return nil
}

func (d *badDisk) catches() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.caught > 0
}

func (d *badDisk) open(dir, path string) (file, uint64, int64, error) {
	_ = d.pass() // a full disk opens what is there
	f, inode, size, err := host{}.open(dir, path)
	if err != nil {
		return nil, 0, 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened++
	return &badFile{d, f}, inode, size, nil
}

type badFile struct {
	d *badDisk
	file
}

// WriteAt finds room for half of what is to be written when the disk is full.
func (f *badFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.d.pass(); err != nil {
		n, werr := f.file.WriteAt(b[:len(b)/2], at)
		return n, errors.Join(err, werr)
	}
	return f.file.WriteAt(b, at)
}

func (f *badFile) Truncate(size int64) error {
	_ = f.d.pass() // a full disk can be given back to
	return f.file.Truncate(size)
}

// returns fails the test if f waits for a disk that never answers. The bound is not a promise: it
// is what tells waiting from hanging.
func returns(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s waits for the log's disk", what)
	}
}

// PROPERTIES 23: a full disk holds the output up and loses none of it; it is said in words, once.
func TestAFullLogDiskLosesNothing(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		d := &badDisk{}
		c := start(t, o, d)
		c.write("first\n")
		if err := c.log.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.fill(true)
		var want strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		c.write(want.String())
		_, _ = c.err.WriteString("other\n")
		until(t, "the log fails", func() bool { return c.log.Stats().LastErr != nil })
		if !c.reports.contain("cannot be logged, and waits: no space left") {
			t.Errorf("reported %q", c.reports.all)
		}
		until(t, "what was half written is cut off", func() bool {
			log, err := tryParse(o.path())
			return err == nil && len(log["stdout"]) == len("first\n")
		})
		d.fill(false)
		c.end()
		c.expect("first\n" + want.String())
		if got := parse(t, o.path())["stderr"]; string(got) != "other\n" {
			t.Errorf("stderr %q", got)
		}
		if c.log.Stats().LastErr != nil || !c.reports.contain("can be logged again") {
			t.Errorf("%v, reported %q", c.log.Stats().LastErr, c.reports.all)
		}
	})
}

// PROPERTIES 17: a berth that starts while the log's disk is full, or frozen, opens the stdio at
// once, and what its predecessor had in the spool is logged when that can be.
func TestOpenDoesNotWaitForTheLogsDisk(t *testing.T) {
	for _, how := range []string{"full", "frozen"} {
		t.Run(how, func(t *testing.T) {
			ways(t, func(t *testing.T, o Options) {
				d := &badDisk{}
				c := start(t, o, d)
				d.fill(true)
				c.write("hello\nno end")
				until(t, "the log fails", func() bool { return c.log.Stats().LastErr != nil })
				_ = c.log.Close()
				c.run.Wait()
				if how == "frozen" {
					d.fill(false)
					d.freeze(t)
				}
				returns(t, "Open", func() {
					l, err := openOn(c.o, d)
					if err != nil {
						t.Error(err)
						return
					}
					c.use(l)
				})
				d.fill(false)
				d.thaw()
				c.end()
				c.expect("hello\nno end")
			})
		})
	}
}

// PROPERTIES 14 and 17: a frozen disk keeps one write for ever, and nothing else.
func TestAFrozenLogDiskHoldsUpNobody(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		d := &badDisk{}
		c := start(t, o, d)
		d.freeze(t)
		c.write("hello\n")
		until(t, "a write hangs", d.catches)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		returns(t, "Reopen", func() {
			if err := c.log.Reopen(ctx); err == nil || !strings.Contains(err.Error(), "its disk does not answer") {
				t.Errorf("Reopen: %v", err)
			}
		})
		returns(t, "Flush", func() {
			if err := c.log.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Flush: %v", err)
			}
		})
		returns(t, "Drain", func() {
			if err := c.log.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Drain: %v", err)
			}
		})
		returns(t, "Close", func() { _ = c.log.Close() })
		returns(t, "Run", c.run.Wait)
		d.thaw()
		c.restart(d)
		c.end()
		c.expect("hello\n")
		returns(t, "Remove", func() {
			if err := c.log.Remove(); err != nil {
				t.Error(err)
			}
		})
	})
}

// PROPERTIES 14: with a frozen log disk the stdio can also be removed.
func TestRemoveDoesNotWaitForAFrozenLogDisk(t *testing.T) {
	d := &badDisk{}
	c := start(t, options(t), d)
	d.freeze(t)
	c.write("hello\n")
	until(t, "a write hangs", d.catches)
	returns(t, "Remove", func() {
		if err := c.log.Remove(); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(c.o.Dir); err == nil {
		t.Error("the stdio is still there")
	}
}

// A container on a frozen log disk starts; its output waits for the disk.
func TestCreateDoesNotWaitForAFrozenLogDisk(t *testing.T) {
	d := &badDisk{}
	d.freeze(t)
	var c *container
	returns(t, "Create", func() { c = start(t, options(t), d) })
	c.write("hello\n")
	d.thaw()
	c.end()
	c.expect("hello\n")
}

// PROPERTIES 23: the kubelet rotates logs while the disk is full: the turn is not kept from it.
func TestReopenOnAFullLogDisk(t *testing.T) {
	d := &badDisk{}
	c := start(t, options(t), d)
	c.write("before\n")
	if err := c.log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.fill(true)
	c.write("after\n")
	until(t, "the log fails", func() bool { return c.log.Stats().LastErr != nil })
	if err := errors.Join(os.Rename(c.o.path(), c.o.path()+".1"), c.log.Reopen(t.Context())); err != nil {
		t.Fatal(err)
	}
	d.fill(false)
	c.end()
	c.expect("after\n")
	if got := parse(t, c.o.path()+".1")["stdout"]; string(got) != "before\n" {
		t.Errorf("the old log has %q", got)
	}
}
