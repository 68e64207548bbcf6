// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The name of an image in an archive, or the message of a registry, reached the terminal as it was:
// it could clear the screen, change the title, or write what the person then ran.
func TestNothingForeignActsOnATerminal(t *testing.T) {
	const foreign = "a\x1b]0;title\x07b\x1b[2Jc\u009b31md\x7fe\rf\u202eg\xffh\n\ti\u00e9"
	const shown = `a\u001b]0;title\u0007b\u001b[2Jc\u009b31md\u007fe\u000df\u202eg\ufffdh` + "\n\ti\u00e9"
	for size := 1; size <= len(foreign); size++ { // however it is cut into writes
		var out bytes.Buffer
		w := &visible{w: &out}
		for rest := []byte(foreign); len(rest) > 0; {
			n := min(size, len(rest))
			if m, err := w.Write(rest[:n]); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}
		if out.String() != shown {
			t.Fatalf("in pieces of %d bytes: %q, want %q", size, out.String(), shown)
		}
	}
	document, err := json.Marshal("\u009b\x7f\x1b")
	if err != nil {
		t.Fatal(err)
	}
	var same string
	if err := json.Unmarshal([]byte(Visible(string(document))), &same); err != nil || same != "\u009b\x7f\x1b" {
		t.Errorf("a document is not the same: %q %v", same, err)
	}
	if got := line(80, "pulling \x1b[2J", stage{text: "\x1b]0;x\x07"}, 1); strings.ContainsRune(got, '\x1b') {
		t.Errorf("progress: %q", got)
	}
	for _, kind := range []pageKind{podsPage, containersPage, timelinePage, logPage} {
		p := newPage(kind, row{id: "x", name: "\x1b[2J"})
		p.take(content{rows: []row{{name: "\x1b[2J", cells: []string{"\x1b[2J"}, remark: "\x1b[2J"}}, text: []string{"\x1b[2J"}}, nil)
		got := p.draw(screenSize{200, 24}, time.Now())
		p.take(content{}, &hostileError{})
		if got += p.draw(screenSize{200, 24}, time.Now()); strings.Contains(got, "\x1b[2J") {
			t.Errorf("top: %q", got)
		}
	}
}

type hostileError struct{}

func (*hostileError) Error() string { return "\x1b[2J" }

// Commands write through it.
func TestTheOutputOfCommandsIsShown(t *testing.T) {
	root := New(Daemon{})
	for _, cmd := range append(root.Commands(), root) {
		if _, ok := cmd.OutOrStdout().(*visible); !ok {
			t.Errorf("%s: its standard output is %T", cmd.Name(), cmd.OutOrStdout())
		}
		if _, ok := cmd.ErrOrStderr().(*visible); !ok {
			t.Errorf("%s: its standard error is %T", cmd.Name(), cmd.ErrOrStderr())
		}
	}
}

// A link in place of a log was followed to any file of the host that root can read, and a FIFO was
// waited for without end.
func TestALogIsARegularFile(t *testing.T) {
	dir := t.TempDir()
	secret, link, fifo := filepath.Join(dir, "secret"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(secret, []byte("2026-01-01T00:00:00Z stdout F secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var out bytes.Buffer
		r := &logReader{path: path, out: &out, err: &out}
		if err := r.read(ctx, -1, false, func() (bool, error) { return false, nil }); err == nil || !strings.Contains(err.Error(), "regular file") || out.Len() > 0 {
			t.Errorf("%s: %q %v", path, out.String(), err)
		}
		cancel()
	}
	f, err := os.Open(secret)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if next := rotated(f, link); next != nil {
		t.Error("a link in place of a rotated log is followed")
	}
}
