// SPDX-License-Identifier: Apache-2.0

package asynclog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is what a log writes to. While it is closed for reading, a write waits.
type output struct {
	mu     sync.Mutex
	text   bytes.Buffer
	err    error // of every write
	gate   chan struct{}
	writes int
}

func newOutput(open bool) *output {
	o := &output{gate: make(chan struct{})}
	if open {
		close(o.gate)
	}
	return o
}

func (o *output) Write(p []byte) (int, error) {
	<-o.gate
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes++
	if o.err != nil {
		return 0, o.err
	}
	return o.text.Write(p)
}

func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

// line is a record as it was written.
type line struct {
	Level   string
	Msg     string
	N       int
	Records uint64 // of a notice: how many are missing
}

func (o *output) lines(t *testing.T) []line {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []line
	for dec := json.NewDecoder(bytes.NewReader(o.text.Bytes())); ; {
		var l line
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, &o.text)
		}
		out = append(out, l)
	}
}

func jsonHandler(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) }

// start runs a log in a bubble until the returned function is called.
func start(o *output) (_ *Log, stop func()) {
	l := New(o, jsonHandler)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	return l, func() { cancel(); <-done }
}

func TestRecordsComeOutInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(true)
		l, stop := start(o)
		const n = 10_000
		for i := range n {
			l.Info("x", "n", i)
			if i%100 == 0 {
				synctest.Wait()
			}
		}
		stop()
		lines := o.lines(t)
		for i, got := range lines {
			if got.N != i {
				t.Fatalf("record %d came out at place %d", got.N, i)
			}
		}
		if len(lines) != n || l.Dropped() != 0 {
			t.Errorf("%d of %d records came out, %d were dropped", len(lines), n, l.Dropped())
		}
	})
}

// PROPERTIES 19: a witness that logged to a stalled standard error waited for it inside of its
// loop.
func TestLoggingNeverWaitsForAStalledOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(false)
		l, stop := start(o)
		const n = 3 * maxRecords
		for i := range n {
			l.Info("x", "n", i)
		}
		if got, want := l.Dropped(), uint64(n-maxRecords); got != want {
			t.Errorf("%d records were dropped, want %d", got, want)
		}
		close(o.gate)
		synctest.Wait()
		l.Info("moves again", "n", n)
		stop()
		lines, next := o.lines(t), 0
		for _, got := range lines {
			if got.Records > 0 {
				next += int(got.Records)
				continue
			}
			if got.N != next {
				t.Fatalf("record %d came where record %d is due", got.N, next)
			}
			next++
		}
		if next != n+1 {
			t.Errorf("%d records are accounted for, want %d", next, n+1)
		}
	})
}

// The bound in bytes holds whatever the size of a record is.
func TestTheQueueIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(false)
		l, stop := start(o)
		text := strings.Repeat("x", maxBytes/10)
		for range 20 {
			l.Info(text)
		}
		l.mu.Lock()
		size := l.mu.size
		l.mu.Unlock()
		if size.bytes > maxBytes || size.records != 9 || l.Dropped() != 11 {
			t.Errorf("the queue holds %+v, and %d were dropped", size, l.Dropped())
		}
		close(o.gate)
		synctest.Wait()
		l.Info(strings.Repeat("y", maxBytes)) // larger than the whole queue
		synctest.Wait()
		stop()
		lines := o.lines(t)
		if n := len(lines); n != 11 || lines[9].Records != 11 || lines[10].Records != 1 {
			t.Errorf("%d lines: %+v", n, lines[9:])
		}
	})
}

func TestAnOutputThatFailsLosesRecordsAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(true)
		o.fail(errors.New("broken pipe"))
		l, stop := start(o)
		for i := range 3 {
			l.Info("x", "n", i)
			synctest.Wait()
		}
		if o.writes > 6 {
			t.Errorf("%d writes for 3 records: the log spins on an output that fails", o.writes)
		}
		o.fail(nil)
		l.Info("x", "n", 3)
		stop()
		lines := o.lines(t)
		if len(lines) != 2 || lines[0].Records != 3 || lines[0].Level != "ERROR" || lines[1].N != 3 || l.Dropped() != 3 {
			t.Errorf("got %+v, and %d were dropped", lines, l.Dropped())
		}
	})
}

func TestFlushWaitsForTheOutputWithinItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(false)
		l, stop := start(o)
		if !l.Flush(0) {
			t.Error("there is nothing to flush, and Flush failed")
		}
		l.Info("x")
		if l.Flush(time.Second) {
			t.Error("Flush succeeded, and nothing was written")
		}
		go func() { time.Sleep(time.Minute); close(o.gate) }()
		if !l.Flush(time.Hour) || len(o.lines(t)) != 1 {
			t.Error("Flush returned before the record was written")
		}
		stop()
	})
}

// A write that hangs must not keep the process from ending.
func TestRunEndsThoughTheOutputHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(false)
		l, stop := start(o)
		l.Info("x")
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took != drainTimeout {
			t.Errorf("Run took %s to end", took)
		}
		close(o.gate)
	})
}

func TestWhatIsLoggedJustBeforeTheEndIsWritten(t *testing.T) {
	for range 100 {
		o := newOutput(true)
		l, stop := start(o)
		l.Info("x")
		stop()
		if len(o.lines(t)) != 1 {
			t.Fatal("the last record is missing")
		}
	}
}

func TestManyLogAtOnce(t *testing.T) {
	o := newOutput(true)
	l, stop := start(o)
	var wg sync.WaitGroup
	const each, loggers = 500, 8
	for g := range loggers {
		wg.Go(func() {
			for i := range each {
				l.With("g", g).Info("x", "n", i)
			}
		})
	}
	wg.Wait()
	stop()
	if n := len(o.lines(t)); n+int(l.Dropped()) < each*loggers {
		t.Errorf("%d records came out and %d were dropped, of %d", n, l.Dropped(), each*loggers)
	}
}

// What libraries and children write to standard error blocks nobody either.
func TestStandardErrorIsCaptured(t *testing.T) {
	o := newOutput(true)
	l, stop := start(o)
	restore, err := l.CaptureStderr()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(os.Stderr, `{"msg": "from a library"}`)
	child := exec.Command("/bin/sh", "-c", `echo '{"msg": "from a child"}' >&2`)
	child.Stderr = os.Stderr
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(os.Stderr, `{"msg": "unfinished"}`)
	restore()
	stop()
	var got []string
	for _, line := range o.lines(t) {
		got = append(got, line.Msg)
	}
	if s := strings.Join(got, ", "); s != "from a library, from a child, unfinished" {
		t.Errorf("got %s", s)
	}
}

func TestACapturedLineWithoutEndIsCut(t *testing.T) {
	l := New(io.Discard, jsonHandler)
	l.copyLines(strings.NewReader(strings.Repeat("x", 3*maxLine+5)))
	if n := len(l.mu.queue); n != 4 {
		t.Fatalf("%d records", n)
	}
	for _, r := range l.mu.queue {
		if len(r.text) > maxLine+1 || r.text[len(r.text)-1] != '\n' {
			t.Errorf("a record of %d bytes ends with %q", len(r.text), r.text[len(r.text)-1])
		}
	}
}

func BenchmarkInfo(b *testing.B) {
	l := New(io.Discard, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	b.ReportAllocs()
	for b.Loop() {
		l.Info("exit settled", "id", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "code", 42)
	}
	cancel()
	<-done
}
