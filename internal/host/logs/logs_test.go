// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/internal/base/event"
)

// logger is the berth-logger that is built once for all tests.
var logger string

func TestMain(m *testing.M) {
	if dir := os.Getenv("LOGS_TEST_DIR"); dir != "" {
		pumpForEver(dir)
		return
	}
	if writes := os.Getenv("LOGS_TEST_WRITES"); writes != "" {
		writeLines(writes)
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "logs")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	logger = filepath.Join(dir, "berth-logger")
	gcc := exec.Command("gcc", "-std=c11", "-static", "-Os", "-o", logger, "../../../logger/logger.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build berth-logger: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// container is a container as its log sees it: where it writes, and where that ends up.
type container struct {
	t        *testing.T
	o        Options
	log      *Log
	out, err *os.File
	run      sync.WaitGroup
	reports  reports
}

// reports collects what a log reports for a person.
type reports struct {
	sync.Mutex
	all []string
}

func (r *reports) add(e event.Event) {
	r.Lock()
	defer r.Unlock()
	line := event.Describe(e)
	r.all = append(r.all, fmt.Sprint(line.Message, ": ", line.Err, " ", line.Attrs))
}

func (r *reports) contain(text string) bool {
	r.Lock()
	defer r.Unlock()
	return strings.Contains(strings.Join(r.all, "\n"), text)
}

func options(t *testing.T) Options {
	d := t.TempDir()
	return Options{
		Dir:          filepath.Join(d, "io", "c1"),
		LogDirectory: filepath.Join(d, "log"),
		LogPath:      "c/0.log",
		Stdout:       true,
		Stderr:       true,
	}
}

func (o Options) path() string { return filepath.Join(o.LogDirectory, o.LogPath) }

// ways are the ways in which output reaches a log.
func ways(t *testing.T, f func(t *testing.T, o Options)) {
	for _, way := range []string{"FIFOs", "logger"} {
		t.Run(way, func(t *testing.T) {
			o := options(t)
			if way == "logger" {
				o.LoggerProgram = logger
			}
			f(t, o)
		})
	}
}

// start makes a container whose log is on a disk, and runs it.
func start(t *testing.T, o Options, d disk) *container {
	t.Helper()
	c := &container{t: t, o: o}
	c.o.Note = c.reports.add
	l, err := createOn(c.o, d)
	if err != nil {
		t.Fatal(err)
	}
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
	return c
}

// use runs a log.
func (c *container) use(l *Log) {
	c.log = l
	c.run.Go(func() {
		if err := l.Run(context.Background()); err != nil {
			c.t.Error(err)
		}
	})
}

// restart is what a berth does that comes after this one.
func (c *container) restart(d disk) {
	c.t.Helper()
	_ = c.log.Close()
	c.run.Wait()
	l, err := openOn(c.o, d)
	if err != nil {
		c.t.Fatal(err)
	}
	c.use(l)
}

// end closes the container's output and waits until all of it is in the log.
func (c *container) end() {
	_ = c.out.Close()
	_ = c.err.Close()
	<-c.log.Drained()
}

// write is a container's write: it waits when nobody reads.
func (c *container) write(text string) {
	c.t.Helper()
	if _, err := c.out.WriteString(text); err != nil {
		c.t.Error(err)
	}
}

// expect compares what is in the log with what was written to stdout.
func (c *container) expect(want string) {
	c.t.Helper()
	equal(c.t, "stdout", parse(c.t, c.o.path())["stdout"], []byte(want))
}

func equal(t *testing.T, stream string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	t.Errorf("%s: %d bytes logged, %d written; first difference at %d", stream, len(got), len(want), i)
}

// shim does what the shim does: it opens both ends of FIFOs, or starts the logger with pipes.
func shim(t testing.TB, l *Log) (out, errs *os.File) {
	t.Helper()
	_, stdout, stderr := l.FIFOs()
	if !l.direct {
		for i, path := range []string{stdout, stderr} {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				out = f
			} else {
				errs = f
			}
		}
		return out, errs
	}
	if want := "binary://" + logger + "?io="; !strings.HasPrefix(stdout, want) || stderr != stdout {
		t.Fatalf("the shim is given %s and %s", stdout, stderr)
	}
	out, errs, _ = startLogger(t, l.o.Dir)
	return out, errs
}

// startLogger starts the logger with two pipes and returns what a container writes to.
func startLogger(t testing.TB, dir string) (out, errs *os.File, cmd *exec.Cmd) {
	t.Helper()
	var ends [6]*os.File
	for i := 0; i < len(ends); i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends[i], ends[i+1] = r, w
	}
	cmd = exec.Command(logger, "io", dir)
	cmd.ExtraFiles = []*os.File{ends[0], ends[2], ends[5]}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after a test that failed; else it has ended
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, f := range cmd.ExtraFiles {
		_ = f.Close()
	}
	if _, err := ends[4].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_ = ends[4].Close()
	return ends[1], ends[3], cmd
}

// parse reads a CRI log back into what each stream wrote.
func parse(t *testing.T, path string) map[string][]byte {
	t.Helper()
	streams, err := tryParse(path)
	if err != nil {
		t.Fatal(err)
	}
	return streams
}

// tryParse is parse for a log that is being written: the end of it may be a part of a line.
func tryParse(path string) (map[string][]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	streams := map[string][]byte{}
	for line := range bytes.Lines(b) {
		f := bytes.SplitN(line, []byte(" "), 4)
		if len(f) != 4 || len(f[2]) != 1 || line[len(line)-1] != '\n' {
			return nil, fmt.Errorf("not a log line: %.80q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, string(f[0])); err != nil {
			return nil, err
		}
		text := f[3]
		if f[2][0] == 'P' {
			text = text[:len(text)-1]
		}
		streams[string(f[1])] = append(streams[string(f[1])], text...)
	}
	return streams, nil
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 20000 {
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("still not: %s", what)
}

func TestFormat(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	const h = "2026-01-02T03:04:05.000000600Z stdout "
	tests := []struct {
		in   string
		last bool
		out  string
		used int
	}{
		{"", false, "", 0},
		{"a\nb\n", false, h + "F a\n" + h + "F b\n", 4},
		{"\n", false, h + "F \n", 1},
		{"a\nrest", false, h + "F a\n", 2},
		{"rest", true, h + "P rest\n", 4},
		{"12345678", false, "", 0},
		{"12345678\n", false, h + "F 12345678\n", 9},
		{"123456789", false, h + "P 12345678\n", 8},
		{"1234567890abcdefgh\n", false, h + "P 12345678\n" + h + "P 90abcdef\n" + h + "F gh\n", 19},
	}
	for _, tt := range tests {
		out, used, _ := format(nil, []byte(tt.in), "stdout", 8, tt.last, at)
		if string(out) != tt.out || used != tt.used {
			t.Errorf("%q: %q, %d used", tt.in, out, used)
		}
	}
}

func TestWhatIsWrittenIsLogged(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		c := start(t, o, host{})
		var want strings.Builder
		for i := range 20000 {
			fmt.Fprintf(&want, "line %d %s\n", i, strings.Repeat("x", i%300))
		}
		want.WriteString(strings.Repeat("y", 100_000) + "\nno end")
		var wg sync.WaitGroup
		wg.Go(func() { c.write(want.String()) })
		wg.Go(func() { _, _ = c.err.WriteString("oops\n") })
		wg.Wait()
		c.end()
		c.expect(want.String())
		if got := parse(t, o.path())["stderr"]; string(got) != "oops\n" {
			t.Errorf("stderr %q", got)
		}
	})
}

// PROPERTIES 14: what was written is in the log although a child holds the output open.
func TestAChildThatHoldsStdoutOpenDoesNotHoldUpFlush(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		c := start(t, o, host{})
		c.write("hello\nno end")
		if err := c.log.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.expect("hello\nno end")
		c.write("more\n") // the pump is still there
		if err := c.log.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.expect("hello\nno endmore\n")
		select {
		case <-c.log.Drained():
			t.Error("drained while a writer is there")
		default:
		}
		c.end()
		if err := c.log.Flush(t.Context()); err != nil {
			t.Errorf("of what has ended: %v", err)
		}
		c.expect("hello\nno endmore\n")
	})
}

// PROPERTIES 14: a writer that never stops holds up nobody who wants what was there.
func TestAWriterThatNeverStopsDoesNotHoldUpFlush(t *testing.T) {
	c := start(t, options(t), host{})
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				c.write(strings.Repeat("x", 1000) + "\n")
			}
		}
	})
	for range 50 {
		if err := c.log.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	writer.Wait()
}

// With the container's own pipes, its log is complete once they are empty; where the shim copies,
// once it closes them.
func TestDrainWaitsForNoMoreThanItMust(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		c := start(t, o, host{})
		c.write("hello\nno end") // and somebody goes on holding it open
		if c.log.direct {
			if err := c.log.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.expect("hello\nno end")
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.log.Drain(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("the shim may still copy, and %v", err)
		}
		c.end()
		if err := c.log.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// PROPERTIES 23.
func TestRotationUnderLoadLosesNothing(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		c := start(t, o, host{})
		var want strings.Builder
		for i := range 50000 {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for line := range strings.Lines(want.String()) {
				c.write(line)
			}
		})
		var files []string
		for i := range 5 {
			old := c.o.path() + "." + strconv.Itoa(i)
			if err := errors.Join(os.Rename(c.o.path(), old), c.log.Reopen(t.Context())); err != nil {
				t.Fatal(err)
			}
			files = append(files, old)
		}
		wg.Wait()
		c.end()
		var got []byte
		for _, f := range append(files, c.o.path()) {
			got = append(got, parse(t, f)["stdout"]...)
		}
		equal(t, "stdout", got, []byte(want.String()))
	})
}

func TestNoWriterIsTheEndOnlyOnceStarted(t *testing.T) {
	l, err := Create(options(t))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(context.Background()) })
	defer wg.Wait()
	defer func() { _ = l.Remove() }()
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Drained():
		t.Fatal("ended before anything began")
	default:
	}
	if err := l.Started(); err != nil {
		t.Fatal(err)
	}
	<-l.Drained()
}

func TestOutputWithoutALogIsDiscarded(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		o.LogPath = ""
		c := start(t, o, host{})
		c.write(strings.Repeat("x\n", 300_000)) // more than any pipe holds
		c.end()
		if _, err := os.Stat(o.LogDirectory); err == nil {
			t.Error("there is a log")
		}
	})
}
