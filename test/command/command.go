// SPDX-License-Identifier: Apache-2.0

// Package command makes the programs that tests run end: each has a deadline.
//
// A program that has not ended by then fails its test, with its name, and gets SIGQUIT, at which a
// Go program writes the state of each of its goroutines to its standard error before it ends. One
// that does not end even so is killed, and its output is not waited for. So the test goes on, and
// prints the output as it does after any other failure.
//
// Programs that a test does not wait for, such as berth itself, are Processes of test/node.
package command

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

const (
	// limit is how long a program may run. The programs of tests take seconds, and a busy machine is
	// slow: the limit is only for those that would never end.
	limit = 3 * time.Minute
	// last is how long it may take after SIGQUIT until it is killed, and how long something else may
	// have its output open once it has ended.
	last = 30 * time.Second
)

// New returns the command to run a program that has to end within three minutes, and ends with the
// test.
func New(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	return Asking(t, limit, nil, name, args...)
}

// Within is [New] with another limit, such as for a compiler.
func Within(t testing.TB, limit time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	return Asking(t, limit, nil, name, args...)
}

// Asking is [Within] that adds the result of ask to the failure if the program does not end. It is
// called before the program gets its signal.
func Asking(t testing.TB, limit time.Duration, ask func() string, name string, args ...string) *exec.Cmd {
	t.Helper()
	return asking(t, limit, last, ask, name, args...)
}

func asking(t testing.TB, limit, last time.Duration, ask func() string, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = last
	cmd.Cancel = func() error {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // the test has ended without waiting for it
			return cmd.Process.Kill()
		}
		var more string
		if ask != nil {
			more = ask()
		}
		t.Errorf("%s has not ended within %s, and gets SIGQUIT\n%s", cmd, limit, more)
		_ = cmd.Process.Signal(syscall.SIGCONT)
		return cmd.Process.Signal(syscall.SIGQUIT)
	}
	return cmd
}
