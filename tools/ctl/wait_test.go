// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/api/client"
)

// lines is what a command has written so far.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// until waits until the command has written all of this.
func (l *lines) until(t *testing.T, want ...string) {
	t.Helper()
	for range 10_000 {
		missing := slices.DeleteFunc(slices.Clone(want), func(w string) bool { return strings.Contains(l.String(), w) })
		if len(missing) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("no %q in\n%s", want, l)
}

// begin runs a command that does not wait long before it says for what it waits.
func begin(ctx context.Context, endpoint string, args ...string) (out *lines, done <-chan error) {
	out = &lines{}
	a := app{patience: time.Millisecond}
	cmd := a.root()
	cmd.SetArgs(append([]string{"--endpoint", endpoint}, args...))
	cmd.SetOut(out)
	cmd.SetErr(out)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	return out, ended
}

// stuck is a fake where every stop and removal waits, and the release of container sql fails.
func stuck() *fake {
	f := services()
	f.hold = make(chan struct{})
	f.lanes[0].Id = "bbc333"
	return f
}

// A removal that hung was silent for as long as it did.
func TestRemovalSaysWhatItWaitsFor(t *testing.T) {
	for _, args := range [][]string{{"rm", "sql"}, {"rm", "-f", "db"}, {"stop", "sql"}} {
		f := stuck()
		out, done := begin(t.Context(), serveFake(t, f), args...)
		out.until(t, "waiting for container sql (bbc333): attempt 3 to release failed, the next one is at", "last error: unmount: busy")
		close(f.hold)
		if err := <-done; err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if n := strings.Count(out.String(), "waiting for"); n != 1 {
			t.Errorf("%v says the same %d times:\n%s", args, n, out)
		}
	}
}

func TestStopSaysThatTheProcessGoesOn(t *testing.T) {
	f := stuck()
	f.lanes = nil
	out, done := begin(t.Context(), serveFake(t, f), "stop", "nginx")
	out.until(t, "waiting for container nginx (bbb222): its process has not ended yet")
	close(f.hold)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Ctrl-C ends the waiting, not what was asked for, and the person learns that.
func TestCtrlCLeavesTheRemovalGoingOn(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"rm", "sql", "nginx"}, "the removal of container sql goes on by itself; `berth timeline bbc333`"},
		{[]string{"rm", "-f", "db"}, "the removal of pod db goes on by itself; `berth timeline aab222`"},
		{[]string{"stop", "sql"}, "container sql got its stop signal, and is killed at the end of its grace period"},
	} {
		f := stuck()
		ctx, cancel := context.WithCancel(t.Context())
		out, done := begin(ctx, serveFake(t, f), c.args...)
		out.until(t, "waiting for")
		cancel() // what SIGINT does to the command's context
		err := <-done
		if err == nil || ExitCode(err) != exitInterrupted {
			t.Errorf("%v: exit code %d, %v", c.args, ExitCode(err), err)
			continue
		}
		says(t, strings.Join(c.args, " "), client.Explain(err).Error(), "interrupted: ", c.want)
		f.mu.Lock()
		if slices.Contains(f.calls, "remove bbb222") {
			t.Errorf("%v went on to the next argument: %q", c.args, f.calls)
		}
		f.mu.Unlock()
		close(f.hold)
	}
}
