// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// theirs makes what another runtime has of a container: its FIFOs, which a shim holds open, and its log.
func theirs(t *testing.T, log string) (o Options, from Pipes, shim *os.File) {
	t.Helper()
	dir := t.TempDir()
	from = Pipes{Stdout: filepath.Join(dir, "c1-stdout")}
	if err := unix.Mkfifo(from.Stdout, 0o600); err != nil {
		t.Fatal(err)
	}
	shim, err := os.OpenFile(from.Stdout, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shim.Close() })
	o = Options{Dir: filepath.Join(dir, "io", "c1"), LogDirectory: filepath.Join(dir, "logs"), LogPath: "c.log", Stdout: true}
	if err := os.MkdirAll(o.LogDirectory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.LogDirectory, o.LogPath), []byte(log), 0o640); err != nil {
		t.Fatal(err)
	}
	return o, from, shim
}

// PROPERTIES 46: the log goes on where the other runtime has stopped. A torn line is ended, a line says
// what has happened, and what waits in the FIFO comes after it, however often it is begun.
func TestALogIsAdoptedWhereItStopped(t *testing.T) {
	const whole, torn = "2026-01-01T00:00:00Z stdout F one\n", "2026-01-01T00:00:01Z stdout F tw"
	for name, before := range map[string]string{"whole": whole, "torn": whole + torn, "empty": ""} {
		o, from, shim := theirs(t, before)
		if _, err := shim.WriteString("three\nfo"); err != nil {
			t.Fatal(err)
		}
		for range 3 { // it was cut off after everything but its last step, and then not
			if err := Adopt(o, from, "it has changed"); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(o.in("cursor")); err != nil {
				t.Fatal(err)
			}
		}
		if err := Adopt(o, from, "it has changed"); err != nil {
			t.Fatal(err)
		}
		l, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error, 1)
		go func() { ran <- l.Run(t.Context()) }()
		if _, err := shim.WriteString("ur\n"); err != nil {
			t.Fatal(err)
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Close(), <-ran); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(o.LogDirectory, o.LogPath))
		if err != nil {
			t.Fatal(err)
		}
		rest, ok := strings.CutPrefix(string(b), before)
		if name == "torn" && ok {
			rest, ok = strings.CutPrefix(rest, "\n")
		}
		var texts []string
		for line := range strings.Lines(rest) {
			f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
			texts = append(texts, f[len(f)-1])
		}
		if got := strings.Join(texts, "|"); !ok || got != "it has changed|three|four" {
			t.Errorf("%s: %q", name, b)
		}
		// Adopted again, it stays as it is.
		if err := Adopt(o, from, "it has changed"); err != nil {
			t.Fatal(err)
		}
		if again, _ := os.ReadFile(filepath.Join(o.LogDirectory, o.LogPath)); string(again) != string(b) {
			t.Errorf("%s: adopted again: %q", name, again)
		}
		if err := RemoveAll(o.Dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(from.Stdout); err != nil {
			t.Errorf("%s: the other runtime's FIFO: %v", name, err)
		}
	}
}

func TestWhatIsNoFIFOIsNotAdopted(t *testing.T) {
	o, from, _ := theirs(t, "")
	gone, file := from, from
	gone.Stdout += "x"
	file.Stdout = filepath.Join(o.LogDirectory, o.LogPath)
	if err := Adopt(o, gone, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a FIFO that is gone: %v", err)
	}
	if err := Adopt(o, file, ""); err == nil {
		t.Error("a file was taken for a FIFO")
	}
	if _, err := os.Stat(o.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

// What is in a pipe outlives all who have it open but the holder.
func TestWhatIsHeldIsNotDropped(t *testing.T) {
	_, from, shim := theirs(t, "")
	if _, err := shim.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	held, err := HoldPipes(Pipes{Stdout: from.Stdout, Stderr: from.Stdout + "x"})
	if err != nil {
		t.Fatal(err)
	}
	_ = shim.Close()
	next, err := os.OpenFile(from.Stdout, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	_ = held.Close()
	b := make([]byte, 100)
	if n, err := next.Read(b); string(b[:n]) != "last words" {
		t.Errorf("%q %v", b[:n], err)
	}
}

// PROPERTIES 46: what a container has written before it ended, and nobody has read, is the end of its log.
func TestWhatIsLeftInAPipeIsTheEndOfTheLog(t *testing.T) {
	const before = "2026-01-01T00:00:00Z stdout F one\n"
	for text, want := range map[string][]string{
		"":                  nil,
		"last\nwords":       {" stdout F last", " stdout P words"},
		"a line too long\n": {" stdout P a line to", " stdout F o long"},
	} {
		o, from, shim := theirs(t, before)
		o.MaxLine = 9
		held, err := HoldPipes(from)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shim.WriteString(text); err != nil {
			t.Fatal(err)
		}
		_ = shim.Close()
		for range 2 { // there is nothing left the second time
			if err := held.WriteRest(o); err != nil {
				t.Fatal(err)
			}
		}
		_ = held.Close()
		b, err := os.ReadFile(filepath.Join(o.LogDirectory, o.LogPath))
		if err != nil {
			t.Fatal(err)
		}
		rest, ok := strings.CutPrefix(string(b), before)
		var got []string
		for line := range strings.Lines(rest) {
			_, line, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "Z")
			got = append(got, line)
		}
		if !ok || !slices.Equal(got, want) {
			t.Errorf("the log after %q: %q", text, b)
		}
	}
}

// PROPERTIES 46: the end of a log that cannot be written now, since the disk is full or the log is refused,
// is kept until it can, and is written once. It was read out of its pipe, and dropped.
func TestTheEndOfALogIsKeptUntilItIsWritten(t *testing.T) {
	const before = "2026-01-01T00:00:00Z stdout F one\n"
	for _, name := range []string{"a full disk", "a log that is refused"} {
		o, from, shim := theirs(t, before)
		path := filepath.Join(o.LogDirectory, o.LogPath)
		held, err := HoldPipes(from)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := shim.WriteString("last\nwords"); err != nil {
			t.Fatal(err)
		}
		_ = shim.Close()
		d := &badDisk{full: name == "a full disk"}
		if !d.full {
			if err := os.Link(path, path+".link"); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := held.writeRest(o, d); err == nil {
				t.Errorf("%s: it was written", name)
			}
			if b, err := os.ReadFile(path); err != nil || string(b) != before {
				t.Errorf("%s: a part is in the log: %q %v", name, b, err)
			}
			if held.Unwritten() == 0 {
				t.Errorf("%s: nothing is said to be left", name)
			}
		}
		d.fill(false)
		_ = os.Remove(path + ".link")
		for range 2 { // there is nothing left the second time
			if err := held.writeRest(o, d); err != nil || held.Unwritten() != 0 {
				t.Errorf("%s: %v, and left are %d bytes", name, err, held.Unwritten())
			}
		}
		_ = held.Close()
		b, err := os.ReadFile(path)
		rest, ok := strings.CutPrefix(string(b), before)
		if lines := strings.Split(rest, "\n"); err != nil || !ok || len(lines) != 3 || !strings.HasSuffix(lines[0], " F last") || !strings.HasSuffix(lines[1], " P words") {
			t.Errorf("%s: the log is %q: %v", name, b, err)
		}
	}
}

// PROPERTIES 46: what was taken from a pipe and is not in the log yet is in it once the log is settled,
// and what is in the pipe stays there. A line comes last, and once, however often the log is settled.
func TestWhatWasTakenIsInALogThatIsSettled(t *testing.T) {
	for _, line := range []string{"", "the rest may be missing"} {
		o, from, shim := theirs(t, "2026-01-01T00:00:00Z stdout F one\n")
		if err := Adopt(o, from, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(o.in("stdout.spool"), []byte("two\nthr"), 0o600); err != nil { // as a round that was cut off leaves it
			t.Fatal(err)
		}
		if _, err := shim.WriteString("ee\n"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := Settle(t.Context(), o, line); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(filepath.Join(o.LogDirectory, o.LogPath))
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for text := range strings.Lines(string(b)) {
			_, text, _ = strings.Cut(strings.TrimSuffix(text, "\n"), " stdout ")
			texts = append(texts, text)
		}
		want := []string{"F one", "F two", "P thr"}
		if line != "" {
			want = append(want, "F "+line)
		}
		if !slices.Equal(texts, want) {
			t.Errorf("the log is %q, want %q", texts, want)
		}
		rest := make([]byte, 10)
		if n, err := shim.Read(rest); err != nil || string(rest[:n]) != "ee\n" {
			t.Errorf("the pipe has %q, %v", rest[:n], err)
		}
		if err := RemoveAll(o.Dir); err != nil {
			t.Fatal(err)
		}
		if err := Settle(t.Context(), o, line); !errdefs.IsNotFound(err) {
			t.Errorf("settled without stdio: %v", err)
		}
	}
}

// A removal that was cut off had left a part of the FIFOs, and nobody could open the stdio, or release it.
func TestAnythingThatARemovalHasLeftIsNoStdio(t *testing.T) {
	o, from, _ := theirs(t, "")
	o.Stderr, from.Stderr = true, from.Stdout
	if err := Adopt(o, from, ""); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"cursor", "stderr", "stdout"} {
		if err := os.Remove(o.in(left)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(o); !errdefs.IsNotFound(err) {
			t.Errorf("after the removal of %s: %v", left, err)
		}
	}
	for range 2 {
		if err := RemoveAll(o.Dir); err != nil {
			t.Error(err)
		}
	}
}

// A log that is refused, such as a hard link to it that an agent has made, does not keep its container
// from being adopted. Its output waits until somebody has removed what is wrong.
func TestALogThatIsRefusedIsAdoptedLater(t *testing.T) {
	o, from, shim := theirs(t, "2026-01-01T00:00:00Z stdout F one\n")
	path := filepath.Join(o.LogDirectory, o.LogPath)
	if err := os.Link(path, path+".link"); err != nil {
		t.Fatal(err)
	}
	if err := Adopt(o, from, "it has changed"); !errors.Is(err, ErrLog) {
		t.Fatal(err)
	}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- l.Run(t.Context()) }()
	if err := os.Remove(path + ".link"); err != nil {
		t.Fatal(err)
	}
	if _, err := shim.WriteString("two\n"); err != nil {
		t.Fatal(err)
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), <-ran); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(b), "2026-01-01T00:00:00Z stdout F one\n") || !strings.HasSuffix(string(b), " F two\n") {
		t.Errorf("%q %v", b, err)
	}
}
