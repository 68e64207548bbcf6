// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ended waits for a logger's end and fails the test if it was not orderly.
func ended(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the logger: %v", err)
	}
}

// loggerIn makes a directory with a logger in it.
func loggerIn(t *testing.T) (o Options, out, errs *os.File, cmd *exec.Cmd) {
	t.Helper()
	o = options(t)
	o.LoggerProgram = logger
	l, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	out, errs, cmd = startLogger(t, o.Dir)
	return o, out, errs, cmd
}

// PROPERTIES 23: what a container writes while no berth is there is kept although the container
// ends, and the logger ends when a berth has it all.
func TestTheLoggerKeepsTheOutputOfAContainerThatEnded(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	_, _ = out.WriteString("hello\nunfinished")
	_, _ = errs.WriteString("oops")
	_, _ = out.Close(), errs.Close()
	drain(t, o, func() {})
	ended(t, cmd)
	got := parse(t, o.path())
	if string(got["stdout"]) != "hello\nunfinished" || string(got["stderr"]) != "oops" {
		t.Errorf("%q", got)
	}
}

func TestTheLoggerEndsByItselfWhenNothingIsLeft(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	_, _ = out.Close(), errs.Close()
	ended(t, cmd)
	drain(t, o, func() {}) // and a berth that comes back knows that there was nothing
}

// The shim waits for the end of the process that it started, 12 seconds at most, and then kills it.
func TestTheLoggerKeepsTheOutputBeyondTheShimsSIGTERM(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	_, _ = out.WriteString("hello\n")
	_, _ = out.Close(), errs.Close()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	ended(t, cmd)
	drain(t, o, func() {})
	equal(t, "stdout", parse(t, o.path())["stdout"], []byte("hello\n"))
}

func TestTheLoggerEndsOnSIGTERMWhenNothingIsLeft(t *testing.T) {
	_, out, errs, cmd := loggerIn(t)
	_, _ = out.Close(), errs.Close()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	ended(t, cmd)
}

// PROPERTIES 23: where output is lost it is said.
func TestALoggerThatWasKilledIsReported(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	defer out.Close()
	defer errs.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	var r reports
	o.Note = r.add
	drain(t, o, func() {})
	if !r.contain("is lost") {
		t.Errorf("reported %q", r.all)
	}
}

// A FIFO that nobody holds open loses what is in it when the shim closes it.
func TestAFIFOThatEndedUnseenIsReported(t *testing.T) {
	o := options(t)
	out, errs := away(t, o)
	_, _ = out.WriteString("lost\n")
	_, _ = out.Close(), errs.Close()
	var r reports
	o.Note = r.add
	drain(t, o, func() {})
	if !r.contain("may be missing") {
		t.Errorf("reported %q", r.all)
	}
}

// A container whose output nobody would take does not start.
func TestALoggerThatDidNotStartIsAnError(t *testing.T) {
	o := options(t)
	o.LoggerProgram = logger
	l, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(context.Background()) })
	if err := l.Started(); err == nil || !strings.Contains(err.Error(), "berth-logger") {
		t.Errorf("%v", err)
	}
	<-l.Drained()
	_ = l.Remove()
	wg.Wait()
}

// Berth ends the logger of stdio that is removed with output in it, or that has no record.
func TestRemoveEndsTheLogger(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	defer out.Close()
	defer errs.Close()
	_, _ = out.WriteString("hello\n")
	if err := RemoveAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	ended(t, cmd)
	if err := RemoveAll(o.Dir); err != nil {
		t.Errorf("of what is absent: %v", err)
	}
}

// While a berth is connected another may come: the later one has the output.
func TestABerthThatComesLaterTakesOver(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	first, pipes, err := dial(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range append(pipes, first) {
			_ = unix.Close(fd)
		}
	})
	_, _ = out.WriteString("hello\n")
	drain(t, o, func() { _, _ = out.Close(), errs.Close() })
	ended(t, cmd)
	equal(t, "stdout", parse(t, o.path())["stdout"], []byte("hello\n"))
}

// The pipe keeps a quarter of a mebibyte for a berth that is away.
func TestTheLoggersPipesAreLarge(t *testing.T) {
	_, out, errs, cmd := loggerIn(t)
	n, err := unix.FcntlInt(out.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil || n != pipeSize {
		t.Errorf("%d bytes, %v", n, err)
	}
	_, _ = out.Close(), errs.Close()
	ended(t, cmd)
}

// Only the user that runs the logger may have the output.
func TestTheLoggersSocketIsForItsUserAlone(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	for path, mode := range map[string]os.FileMode{o.Dir: 0o700, o.Dir + "/" + socket: 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	_, _ = out.Close(), errs.Close()
	ended(t, cmd)
}

// A terminal has stdout alone. The other descriptor that the logger sends is closed once: closed
// twice, it took away somebody else's that had been given the same number.
func TestTheDescriptorThatATerminalDoesNotNeedIsClosedOnce(t *testing.T) {
	o, out, errs, cmd := loggerIn(t)
	o.Stderr, o.Terminal = false, true
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.keeper.dial(); err != nil {
		t.Fatal(err)
	}
	var others []*os.File
	for range 20 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, f)
	}
	for range 5 {
		runtime.GC()
	}
	until(t, "finalizers have run", finalized())
	for _, f := range others {
		if _, err := f.Stat(); err != nil {
			t.Errorf("somebody closed it: %v", err)
		}
		_ = f.Close()
	}
	_, _ = out.Close(), errs.Close()
	_ = l.Remove()
	ended(t, cmd)
}

// finalized reports whether the finalizers of what is garbage now have run.
func finalized() func() bool {
	done := make(chan struct{})
	runtime.AddCleanup(new([16]byte), func(done chan struct{}) { close(done) }, done)
	return func() bool {
		runtime.GC()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}
