// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// hangs makes this program one that never ends by itself.
const hangs = "BERTH_TEST_HANGS"

func TestMain(m *testing.M) {
	if os.Getenv(hangs) != "" {
		_, _ = fmt.Println("begun")
		waitForever()
	}
	os.Exit(m.Run())
}

func waitForever() {
	for { // a select without a case would be a deadlock that Go sees
		time.Sleep(time.Hour)
	}
}

// failing is a test that notes how it fails.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Errorf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) }

// output is what a program has written. begun is closed once that is something.
type output struct {
	text  bytes.Buffer
	begun chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	if o.text.Len() == 0 {
		close(o.begun)
	}
	return o.text.Write(b)
}

// hang runs a program that does not end, past its deadline, and returns what it has written.
func hang(f *failing, last time.Duration, name string, args ...string) (string, error) {
	out := &output{begun: make(chan struct{})}
	cmd := asking(f, time.Millisecond, last, func() string {
		<-out.begun
		return "others say so"
	}, name, args...)
	cmd.Env = append(os.Environ(), hangs+"=yes")
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	return out.text.String(), err
}

// A command that never ended took the whole package with it, and the packages that waited for its turn.
func TestAProgramThatHangsEndsAndSaysWhatItWaitsFor(t *testing.T) {
	f := &failing{TB: t}
	out, err := hang(f, time.Minute, os.Args[0])
	if err == nil || !strings.Contains(out, "command.TestMain") {
		t.Errorf("it ended with %v and has printed %s", err, out)
	}
	for _, want := range []string{os.Args[0], "has not ended within 1ms", "others say so"} {
		if !strings.Contains(f.said, want) {
			t.Errorf("the test fails without %q: %s", want, f.said)
		}
	}
}

// One that does not react to the signal, and whose output something else holds open, ends as well.
func TestAProgramThatIgnoresTheSignalIsKilled(t *testing.T) {
	f := &failing{TB: t}
	out, err := hang(f, time.Second, "sh", "-c", "trap '' QUIT; echo begun; while :; do sleep 0.1; done")
	if err == nil || out != "begun\n" || f.said == "" {
		t.Errorf("it ended with %v and has printed %q; the test said %q", err, out, f.said)
	}
}

func TestAProgramThatEndsIsLeftAlone(t *testing.T) {
	f := &failing{TB: t}
	if out, err := New(f, "echo", "done").Output(); err != nil || string(out) != "done\n" || f.said != "" {
		t.Errorf("%q, %v, and the test fails with %q", out, err, f.said)
	}
}
