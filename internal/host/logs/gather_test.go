// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"strings"
	"testing"
	"time"
)

// gathering makes a container whose pump waits for more output, for an hour, although there is some.
func gathering(t *testing.T) *container {
	t.Helper()
	o := options(t)
	o.LoggerProgram = logger
	c := &container{t: t, o: o}
	l, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	l.gatherTime = time.Hour
	c.use(l)
	c.out, c.err = shim(t, l)
	t.Cleanup(func() {
		_ = c.log.Remove()
		c.run.Wait()
		_, _ = c.out.Close(), c.err.Close()
	})
	if err := l.Started(); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for range gatherAfter + 2 { // the first follows none
		c.write("line\n")
		want.WriteString("line\n")
		until(t, "each line is logged at once", func() bool {
			got, err := tryParse(o.path())
			return err == nil && string(got["stdout"]) == want.String()
		})
	}
	s := l.streams[0]
	until(t, "the pipe is not watched", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.mu.watched
	})
	c.write("more\nun")
	return c
}

const gathered = "line\nline\nline\nline\nline\nmore\nun"

// PROPERTIES 14: what asks for a container's output, as its end does, does not wait for more of it.
func TestAFlushDoesNotWaitForMoreOutput(t *testing.T) {
	c := gathering(t)
	if err := c.log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.expect(gathered)
	c.write("finished\n")
	_, _ = c.out.Close(), c.err.Close()
	if err := c.log.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-c.log.Drained()
	c.expect(gathered + "finished\n")
}

// PROPERTIES 23: a berth that stops while it waits for more output leaves what there is to the next.
func TestOutputThatWasNotGatheredIsLeftToTheNextBerth(t *testing.T) {
	c := gathering(t)
	c.restart(host{})
	c.write("finished\n")
	c.end()
	c.expect(gathered + "finished\n")
}
