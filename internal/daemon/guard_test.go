// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/base/asynclog"
)

func TestMain(m *testing.M) {
	if os.Getenv("BERTH_TEST_LISTEN") != "" {
		listenAndEnd()
	}
	if os.Getenv("BERTH_TEST_PANIC") != "" {
		panicInGroup()
	}
	os.Exit(m.Run())
}

func textLog(out io.Writer) *asynclog.Log {
	return asynclog.New(out, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
}

// panicInGroup does what a berth does whose goroutine panics.
func panicInGroup() {
	log := textLog(os.Stderr)
	go log.Run(context.Background())
	g := &group{&errgroup.Group{}, crash(log)}
	g.Go("tester", func() error { panic("boom") })
	_ = g.Wait()
	os.Exit(0)
}

func panicking(t *testing.T, stderr io.Writer) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BERTH_TEST_PANIC=1")
	cmd.Stderr = stderr
	return cmd
}

// A goroutine of the daemon that panics ends the process, and the log has its stack.
func TestAPanicEndsTheProcessWithItsStack(t *testing.T) {
	var log bytes.Buffer
	cmd := panicking(t, &log)
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitPanic {
		t.Errorf("the process ended with %v", err)
	}
	for _, want := range []string{"where=tester", "panic=boom", "daemon.panicInGroup"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not have %s:\n%s", want, &log)
		}
	}
}

// PROPERTIES 19: a process that panics ends though nobody reads what it has to say.
func TestAPanicEndsTheProcessThoughItsLogIsNotRead(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "full"), os.NewFile(uintptr(fds[1]), "full")
	defer r.Close()
	defer w.Close()
	for size := 4096; size > 0; size /= 2 { // until the pipe takes not one byte more
		for {
			if _, err := unix.Write(fds[1], make([]byte, size)); errors.Is(err, unix.EAGAIN) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := unix.SetNonblock(fds[1], false); err != nil { // the child shares it
		t.Fatal(err)
	}
	cmd := panicking(t, w)
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != exitPanic {
		t.Errorf("the process ended with %v", err)
	}
}

// A busy metrics port, or a host without a free inotify instance, ended berth.
func TestWhatBerthCanDoWithoutIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		log := textLog(io.Discard)
		var calls []time.Duration
		began := time.Now()
		persist(ctx, log, "do it", func(ctx context.Context) error {
			calls = append(calls, time.Since(began))
			switch len(calls) {
			case 12: // it works for a while, then breaks
				time.Sleep(time.Hour)
				began = time.Now()
			case 14:
				cancel()
				<-ctx.Done()
			}
			return errors.New("busy")
		})
		for i := range 11 {
			gap, wait := calls[i+1]-calls[i], min(firstPersist<<i, slowestPersist)
			if gap < wait/2 || gap > wait/2+wait {
				t.Errorf("attempt %d came %s after the one before it, want about %s", i+2, gap, wait)
			}
		}
		if len(calls) != 14 || calls[12] > 2*firstPersist {
			t.Errorf("attempts at %s", calls)
		}
	})
}
