// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// watched is a container whose logger the test may kill.
func watched(t *testing.T) (*container, *exec.Cmd) {
	t.Helper()
	o, out, errs, cmd := loggerIn(t)
	c := &container{t: t, o: o, out: out, err: errs}
	c.o.Note = c.reports.add
	c.o.Pipe = pipeOfThisProcess
	l, err := Open(c.o)
	if err != nil {
		t.Fatal(err)
	}
	c.use(l)
	t.Cleanup(func() {
		_ = c.log.Remove()
		c.run.Wait()
		_, _ = c.out.Close(), c.err.Close()
	})
	return c, cmd
}

// pipeOfThisProcess finds a pipe among those that the test writes to, in the place of the container and
// its shim.
func pipeOfThisProcess(inode uint64) (int, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1, err
	}
	for _, e := range entries {
		path := "/proc/self/fd/" + e.Name()
		if link, _ := os.Readlink(path); link == fmt.Sprintf("pipe:[%d]", inode) {
			return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		}
	}
	return -1, unix.ENOENT
}

// loggerOf returns the process that listens on the socket of a directory.
func loggerOf(t *testing.T, dir string) int {
	t.Helper()
	conn, pipes, err := dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range pipes {
		_ = unix.Close(fd)
	}
	defer unix.Close(conn)
	cred, err := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		t.Fatal(err)
	}
	return int(cred.Pid)
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// replaced counts how often another logger has taken the place of one that was killed.
func (c *container) replaced() int {
	c.reports.Lock()
	defer c.reports.Unlock()
	return strings.Count(strings.Join(c.reports.all, "\n"), "another one has taken its place") +
		strings.Count(strings.Join(c.reports.all, "\n"), "killed while berth was away: until now")
}

// PROPERTIES 53 and 23: berth-logger was killed while berth was there, and nothing noticed. When berth was
// restarted, the container got EPIPE.
func TestALoggerThatIsKilledIsReplaced(t *testing.T) {
	c, cmd := watched(t)
	c.write("one\n")
	must(t, c.log.Flush(t.Context()))
	kill(t, cmd)
	until(t, "another logger", func() bool { return c.replaced() == 1 })
	_ = c.log.Close()
	c.run.Wait()
	c.write("two, while berth is away\n")
	c.restart(host{})
	c.write("three\n")
	c.end()
	c.expect("one\ntwo, while berth is away\nthree\n")
	if c.replaced() != 1 || c.reports.contain("is lost") {
		t.Errorf("reported %q", c.reports.all)
	}
}

// PROPERTIES 53: the one that took its place is watched, too, and so on; a container that writes all the
// time while berth is restarted in between loses nothing.
func TestALoggerThatIsKilledAgainAndAgainCostsNoByte(t *testing.T) {
	c, cmd := watched(t)
	must(t, c.log.Flush(t.Context()))
	kill(t, cmd)
	var want strings.Builder
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			line := "line " + strconv.Itoa(i) + "\n"
			want.WriteString(line)
			c.write(line)
		}
	})
	for i := range 5 {
		until(t, "another logger", func() bool { return c.replaced() == i+1 })
		c.restart(host{})
		must(t, c.log.Flush(t.Context()))
		pid := loggerOf(t, c.o.Dir) // which takes the connection from berth, and berth takes it back
		must(t, unix.Kill(pid, unix.SIGKILL))
	}
	until(t, "the last logger", func() bool { return c.replaced() == 6 })
	close(stop)
	writer.Wait()
	c.end()
	c.expect(want.String())
}

// PROPERTIES 53: a logger was killed while berth was away. The container lived on, but no line came any
// more.
func TestALoggerThatWasKilledWhileBerthWasAwayIsReplaced(t *testing.T) {
	c, cmd := watched(t)
	c.write("one\n")
	must(t, c.log.Flush(t.Context()))
	_ = c.log.Close()
	c.run.Wait()
	c.write("two\n") // it stays in the pipe while somebody may write to that
	kill(t, cmd)
	if _, err := c.out.WriteString("a write without a reader\n"); !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("%v: the test is about a pipe without a reader", err)
	}
	c.restart(host{})
	until(t, "another logger", func() bool { return c.replaced() == 1 })
	if !c.reports.contain("while berth was away") || c.reports.contain("is lost") {
		t.Errorf("reported %q", c.reports.all)
	}
	c.write("three\n")
	c.restart(host{})
	c.write("four\n")
	c.end()
	c.expect("one\ntwo\nthree\nfour\n")
}

// PROPERTIES 53: the socket of a logger was removed. The next berth took that for the end of the output,
// and the container waited for ever once its pipe was full.
func TestALoggerWhoseSocketWasRemovedIsReplaced(t *testing.T) {
	c, _ := watched(t)
	c.write("one\n")
	must(t, c.log.Flush(t.Context()), os.Remove(c.o.in(socket)))
	c.restart(host{})
	until(t, "another logger", func() bool { return c.replaced() == 1 })
	c.write("two\n")
	c.restart(host{})
	c.write("three\n")
	c.end()
	c.expect("one\ntwo\nthree\n")
}

// A logger that ended because nothing was left is not replaced.
func TestALoggerThatEndedByItselfIsNotReplaced(t *testing.T) {
	for range 20 {
		c, cmd := watched(t)
		c.write("one\n")
		c.end()
		ended(t, cmd)
		c.run.Wait()
		if c.replaced() != 0 {
			t.Errorf("reported %q", c.reports.all)
		}
	}
}

// A logger that cannot be replaced is reported, and replaced as soon as that can be.
func TestALoggerIsReplacedOnceThatCanBe(t *testing.T) {
	c, cmd := watched(t)
	must(t, c.log.Flush(t.Context()))
	_ = c.log.Close()
	c.run.Wait()
	missing := c.o.in("program") // in the directory of the stdio, which ends with it
	c.o.LoggerProgram = missing
	c.restart(host{})
	must(t, c.log.Flush(t.Context()))
	kill(t, cmd)
	until(t, "it is said", func() bool { return c.reports.contain("another one cannot be started") })
	must(t, os.Link(logger, missing))
	until(t, "another logger", func() bool { return c.replaced() == 1 })
	c.restart(host{})
	c.write("one\n")
	c.end()
	c.expect("one\n")
}

// PROPERTIES 53: whatever may harm a logger gains nothing by it: it has no capability.
func TestTheLoggerHasNoCapability(t *testing.T) {
	_, out, errs, cmd := loggerIn(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("it lacks %q:\n%s", line, status)
		}
	}
	_, _ = out.Close(), errs.Close()
	ended(t, cmd)
}
