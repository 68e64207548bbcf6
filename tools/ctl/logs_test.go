// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const stampA, stampB = "2026-01-02T03:04:05.000000001Z", "2026-01-02T03:04:06.000000001Z"

func logFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	appendTo(t, path, lines...)
	return path
}

func appendTo(t *testing.T, path string, lines ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(strings.Join(lines, "\n") + "\n"); err != nil {
		t.Fatal(err)
	}
}

var sample = []string{
	stampA + " stdout F one",
	stampA + " stdout P two",
	stampA + " stderr F problem",
	stampA + " stdout P ",
	stampB + " stdout F  and more",
	stampB + " stdout F ",
	stampB + " stdout F last",
}

func TestLogs(t *testing.T) {
	f := services()
	f.cts[2].LogPath = logFile(t, sample...)
	at := serveFake(t, f)
	out, problem := berth(t, at, "logs", "-f", "--tail", "1", "sql") // follows to the end of a container that ended
	if out != "last\n" || problem != "" {
		t.Errorf("got %q %s", out, problem)
	}
	_, problem = berth(t, at, "logs", "nginx")
	says(t, "logs of a container without a log", problem, "nginx", "no log")
}

func TestLogLinesAreJoinedAndStreamsKeptApart(t *testing.T) {
	for _, c := range []struct {
		tail     int
		stamps   bool
		out, err string
	}{
		{-1, false, "one\ntwo and more\n\nlast\n", "problem\n"},
		{-1, true, stampA + " one\n" + stampA + " two and more\n" + stampB + " \n" + stampB + " last\n", stampA + " problem\n"},
		{0, false, "", ""},
		{1, false, "last\n", ""},
		{2, false, "\nlast\n", ""},
		{3, false, "\nlast\n", "problem\n"},
		{4, false, "two and more\n\nlast\n", "problem\n"},
		{5, false, "one\ntwo and more\n\nlast\n", "problem\n"},
		{50, false, "one\ntwo and more\n\nlast\n", "problem\n"},
	} {
		var out, problems bytes.Buffer
		r := &logReader{path: logFile(t, sample...), stamps: c.stamps, out: &out, err: &problems}
		if err := r.read(context.Background(), c.tail, false, nil); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.out || problems.String() != c.err {
			t.Errorf("tail %d: got %q and %q, want %q and %q", c.tail, out.String(), problems.String(), c.out, c.err)
		}
	}
}

func TestTailOfLongLines(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for n := 1; n <= 3; n++ {
		var out bytes.Buffer
		r := &logReader{path: logFile(t, stampA+" stdout F a", stampA+" stdout F "+long, stampA+" stdout F b"), out: &out, err: &out}
		if err := r.read(context.Background(), n, false, nil); err != nil {
			t.Fatal(err)
		}
		if want := strings.Join([]string{"a\n", long + "\n", "b\n"}[3-n:], ""); out.String() != want {
			t.Errorf("tail %d: got %d bytes, want %d", n, out.Len(), len(want))
		}
	}
}

// Lines that were written between the end that the reader saw and the rotation were left out.
func TestALineJustBeforeTheRotationIsNotLost(t *testing.T) {
	path := logFile(t, stampA+" stdout F 0")
	var out bytes.Buffer
	r := &logReader{path: path, out: &out, err: &out}
	asked := 0
	r.rotated = func(f *os.File, path string) *os.File { // the reader has seen the end
		if asked++; asked == 1 {
			appendTo(t, path, stampA+" stdout F 1")
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
			appendTo(t, path, stampA+" stdout F 2")
		}
		return rotated(f, path)
	}
	if err := r.read(context.Background(), -1, true, func() (bool, error) { return false, nil }); err != nil {
		t.Fatal(err)
	}
	if want := "0\n1\n2\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// A hole as long as the log was before it was cut short took as much memory to read.
func TestAHoleInALogIsNotKeptInMemory(t *testing.T) {
	path := logFile(t, sample...)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const hole = 1 << 40 // it has no blocks, and reading all of it would take minutes
	if _, err := f.WriteAt([]byte(stampB+" stdout F after\n"), hole); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r := &logReader{path: path, out: &out, err: &out}
	err = r.read(t.Context(), -1, false, func() (bool, error) { return false, nil })
	if err == nil || !strings.Contains(err.Error(), "CRI log format") || !strings.Contains(out.String(), "last\n") {
		t.Errorf("%v after %q", err, out.String())
	}
}

func TestFollowingLosesNothingToRotation(t *testing.T) {
	path := logFile(t, stampA+" stdout F 0")
	var out bytes.Buffer
	r := &logReader{path: path, out: &out, err: &out}
	round := 0
	running := func() (bool, error) { // asked whenever the reader is at the end
		round++
		switch round {
		case 1:
			appendTo(t, path, stampA+" stdout F 1")
		case 2:
			appendTo(t, path, stampA+" stdout F 2")
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
			appendTo(t, path, stampA+" stdout F 3")
		case 3:
			if err := os.Rename(path, path+".2"); err != nil {
				t.Fatal(err)
			}
			appendTo(t, path+".2", stampA+" stdout F 4") // the writer has not reopened it yet
			appendTo(t, path, stampA+" stdout F 5")
		case 4:
			appendTo(t, path, stampA+" stdout F 6")
			return false, nil
		}
		return true, nil
	}
	if err := r.read(context.Background(), -1, true, running); err != nil {
		t.Fatal(err)
	}
	if want := "0\n1\n2\n3\n4\n5\n6\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestAnUnfinishedLineIsWaitedFor(t *testing.T) {
	path := logFile(t, stampA+" stdout F 0")
	half := func(s string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, s)
		f.Close()
	}
	half(stampA + " stdo")
	var out bytes.Buffer
	r := &logReader{path: path, out: &out, err: &out}
	if err := r.read(context.Background(), -1, true, func() (bool, error) { half("ut F 1\n"); return false, nil }); err != nil {
		t.Fatal(err)
	}
	if out.String() != "0\n1\n" {
		t.Errorf("got %q", out.String())
	}
}
