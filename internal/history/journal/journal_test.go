// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/base/asynclog"
)

// journald is a fake one: a socket, and what it has received.
func journald(t *testing.T) (path string, next func() map[string]string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "j") // a short path
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "socket")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), os.RemoveAll(dir) })
	return path, func() map[string]string {
		t.Helper()
		b := make([]byte, 1<<20)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, b[:n])
	}
}

// decode is a parser of the native protocol, written from its description.
func decode(t *testing.T, b []byte) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			t.Fatalf("no end of a line in %q", b)
		}
		line := string(b[:end])
		b = b[end+1:]
		if name, value, ok := strings.Cut(line, "="); ok {
			fields[name] = value
			continue
		}
		n := binary.LittleEndian.Uint64(b)
		fields[line] = string(b[8 : 8+n])
		if b[8+n] != '\n' {
			t.Fatalf("%s does not end with its length", line)
		}
		b = b[9+n:]
	}
	return fields
}

func text(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }

// start runs a log as berth does.
func start(t *testing.T, socket string) (log *asynclog.Log, stderr *bytes.Buffer, stop func()) {
	t.Helper()
	stderr = &bytes.Buffer{}
	out := New(stderr, socket)
	l := asynclog.New(out, out.Handler(text))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	return l, stderr, func() { cancel(); <-done }
}

func TestARecordHasFieldsBesideItsText(t *testing.T) {
	socket, next := journald(t)
	log, stderr, stop := start(t, socket)
	ctx := With(t.Context(), Fields{Event: "ExitSettled", Namespace: "default", Pod: "web", Container: "app", ID: "c1"})
	log.LogAttrs(ctx, slog.LevelWarn, "exit settled", slog.Int("code", 42), slog.String("reason", "Error"), slog.String("other", "x"))
	log.With("component", "cni").ErrorContext(t.Context(), "two\nlines", "err", "a\nb")
	_, _ = log.Write([]byte("a line of another program\n"))
	got := next()
	for name, want := range map[string]string{
		"EVENT": "ExitSettled", "NAMESPACE": "default", "POD": "web", "CONTAINER": "app", "ID": "c1",
		"CODE": "42", "REASON": "Error", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "berth",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if !strings.Contains(got["MESSAGE"], `msg="exit settled" code=42 reason=Error other=x`) || len(got) != 10 {
		t.Errorf("%q", got)
	}
	if got := next(); got["ERROR"] != "a\nb" || got["COMPONENT"] != "cni" || got["PRIORITY"] != "3" || !strings.Contains(got["MESSAGE"], `two\nlines`) {
		t.Errorf("%q", got)
	}
	stop()
	if stderr.String() != "a line of another program\n" {
		t.Errorf("standard error has %q", stderr)
	}
}

// Many records in one batch are as many messages, in their order.
func TestABatchIsTakenApart(t *testing.T) {
	socket, next := journald(t)
	log, _, stop := start(t, socket)
	defer stop()
	const n = 2000
	go func() {
		for i := range n {
			log.Info("x", "code", i)
		}
	}()
	for i := range n {
		if got := next(); got["CODE"] != slog.IntValue(i).String() {
			t.Fatalf("record %s came where %d is due", got["CODE"], i)
		}
	}
}

func TestALargeRecordIsCutAndMarked(t *testing.T) {
	socket, next := journald(t)
	log, stderr, stop := start(t, socket)
	log.Info("large", "err", strings.Repeat("ä", 300<<10))
	got := next()
	if !strings.HasSuffix(got["ERROR"], cut) || !strings.HasSuffix(got["MESSAGE"], cut) {
		t.Errorf("%d bytes of ERROR, %d of MESSAGE", len(got["ERROR"]), len(got["MESSAGE"]))
	}
	if stop(); stderr.Len() > 0 {
		t.Errorf("standard error has %.200q", stderr)
	}
}

// PROPERTIES 19: no journald, or one that reads nothing: the log goes on to standard error, which is
// said once, and nobody who logs waits.
func TestWithoutAJournalTheLogGoesToStandardError(t *testing.T) {
	log, stderr, stop := start(t, filepath.Join(t.TempDir(), "absent"))
	for range 3 {
		log.Info("hello", "code", 42)
	}
	stop()
	if got := stderr.String(); strings.Count(got, "msg=hello code=42\n") != 3 || strings.Count(got, "takes no records") != 1 {
		t.Errorf("%q", got)
	}
	socket, _ := journald(t) // which reads nothing: its queue is full after some records
	log, stderr, stop = start(t, socket)
	const n = 1000
	for range n {
		log.Info("hello")
	}
	if !log.Flush(time.Minute) {
		t.Error("the log is not written")
	}
	stop()
	if got := stderr.String(); strings.Count(got, "takes no records") != 1 || strings.Count(got, "msg=hello\n") < n/2 {
		t.Errorf("%d bytes: %.300q", len(got), got)
	}
}
