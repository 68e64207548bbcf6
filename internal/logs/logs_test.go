// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("LOGS_TEST_DIR"); dir != "" {
		pumpForEver(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// shim opens a FIFO's both ends, as the containerd shim does.
func shim(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func start(t *testing.T, o Options) (*Log, *os.File, *os.File) {
	t.Helper()
	l, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Run(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { _ = l.Remove(); wg.Wait() })
	_, out, errp := l.FIFOs()
	a, b := shim(t, out), shim(t, errp)
	l.Started()
	return l, a, b
}

func options(t *testing.T) Options {
	d := t.TempDir()
	return Options{Dir: filepath.Join(d, "io", "c1"), Path: filepath.Join(d, "log", "0.log"), Stdout: true, Stderr: true}
}

// parse reads a CRI log back into what each stream wrote.
func parse(t *testing.T, path string) map[string][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	streams := map[string][]byte{}
	for line := range bytes.Lines(b) {
		f := bytes.SplitN(line, []byte(" "), 4)
		if len(f) != 4 || len(f[2]) != 1 || line[len(line)-1] != '\n' {
			t.Fatalf("not a log line: %.80q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, string(f[0])); err != nil {
			t.Fatal(err)
		}
		text := f[3]
		if f[2][0] == 'P' {
			text = text[:len(text)-1]
		}
		streams[string(f[1])] = append(streams[string(f[1])], text...)
	}
	return streams
}

func TestFormat(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	const h = "2026-01-02T03:04:05.000000600Z stdout "
	tests := []struct {
		in   string
		last bool
		out  string
		used int
	}{
		{"", false, "", 0},
		{"a\nb\n", false, h + "F a\n" + h + "F b\n", 4},
		{"\n", false, h + "F \n", 1},
		{"a\nrest", false, h + "F a\n", 2},
		{"rest", true, h + "P rest\n", 4},
		{"12345678", false, "", 0},
		{"12345678\n", false, h + "F 12345678\n", 9},
		{"123456789", false, h + "P 12345678\n", 8},
		{"1234567890abcdefgh\n", false, h + "P 12345678\n" + h + "P 90abcdef\n" + h + "F gh\n", 19},
	}
	for _, tt := range tests {
		out, used, _ := format([]byte(tt.in), "stdout", 8, tt.last, at)
		if string(out) != tt.out || used != tt.used {
			t.Errorf("%q: %q, %d used", tt.in, out, used)
		}
	}
}

func TestWhatIsWrittenIsLogged(t *testing.T) {
	o := options(t)
	l, out, errp := start(t, o)
	var want bytes.Buffer
	for i := range 20000 {
		fmt.Fprintf(&want, "line %d %s\n", i, strings.Repeat("x", i%300))
	}
	want.WriteString(strings.Repeat("y", 100_000) + "\nno end")
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = out.Write(want.Bytes()); _ = out.Close() })
	wg.Go(func() { _, _ = errp.WriteString("oops\n"); _ = errp.Close() })
	wg.Wait()
	<-l.Drained()
	got := parse(t, o.Path)
	if !bytes.Equal(got["stdout"], want.Bytes()) || string(got["stderr"]) != "oops\n" {
		t.Fatalf("stdout %d of %d bytes, stderr %q", len(got["stdout"]), want.Len(), got["stderr"])
	}
}

func TestAChildThatHoldsStdoutOpenDoesNotHoldUpFlush(t *testing.T) {
	o := options(t)
	l, out, errp := start(t, o)
	defer out.Close()
	defer errp.Close()
	_, _ = out.WriteString("hello\nno end")
	if err := l.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := parse(t, o.Path); string(got["stdout"]) != "hello\nno end" {
		t.Fatalf("%q", got)
	}
	_, _ = out.WriteString("more\n") // the pump is still there
	if err := l.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := parse(t, o.Path); string(got["stdout"]) != "hello\nno endmore\n" {
		t.Fatalf("%q", got)
	}
	select {
	case <-l.Drained():
		t.Fatal("drained while a writer is there")
	default:
	}
}

func TestRotationUnderLoadLosesNothing(t *testing.T) {
	o := options(t)
	l, out, errp := start(t, o)
	var want bytes.Buffer
	for i := range 50000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = out.Write(want.Bytes()); _ = out.Close(); _ = errp.Close() })
	var files []string
	for i := range 5 {
		old := o.Path + "." + strconv.Itoa(i)
		if err := errors.Join(os.Rename(o.Path, old), l.Reopen()); err != nil {
			t.Fatal(err)
		}
		files = append(files, old)
	}
	wg.Wait()
	<-l.Drained()
	var got []byte
	for _, f := range append(files, o.Path) {
		got = append(got, parse(t, f)["stdout"]...)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Fatalf("%d of %d bytes", len(got), want.Len())
	}
}

func TestNoWriterIsTheEndOnlyOnceStarted(t *testing.T) {
	o := options(t)
	l, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(context.Background()) })
	defer wg.Wait()
	defer l.Remove()
	if err := l.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Drained():
		t.Fatal("ended before anything began")
	default:
	}
	l.Started()
	<-l.Drained()
}

// CVE-2024-5154's class: a link planted where the log goes is not followed.
func TestALinkInThePlaceOfTheLogIsRefused(t *testing.T) {
	o := options(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.MkdirAll(filepath.Dir(o.Path), 0o755), os.Symlink(victim, o.Path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(o); err == nil {
		t.Fatal("followed")
	}
	if _, err := os.Stat(victim); err == nil {
		t.Fatal("made what the link points to")
	}
	if _, err := os.Stat(o.Dir); err == nil {
		t.Fatal("left FIFOs behind")
	}
	_ = os.Remove(o.Path)
	if err := unix.Mkfifo(o.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(o); err == nil {
		t.Fatal("a FIFO is no log")
	}
}

// A disk that is full holds the output up and loses none of it.
func TestAFullDiskLosesNothing(t *testing.T) {
	o := options(t)
	dir := filepath.Dir(o.Path)
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount("log", dir, "tmpfs", 0, "size=64k")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 40<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	l, out, errp := start(t, o)
	var want bytes.Buffer
	for i := range 1000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	_, _ = out.Write(want.Bytes())
	for l.failing() == nil {
		time.Sleep(time.Millisecond)
	}
	_ = os.Remove(ballast)
	_ = out.Close()
	_ = errp.Close()
	<-l.Drained()
	if got := parse(t, o.Path); !bytes.Equal(got["stdout"], want.Bytes()) {
		t.Fatalf("%d of %d bytes", len(got["stdout"]), want.Len())
	}
}

// The container's output, numbered, while the pump is killed again and again: not a byte lost, none doubled.
func TestKill9LosesAndDoublesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 4))
	dir := t.TempDir()
	o := childOptions(dir)
	l, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	_, outp, errp := l.FIFOs()
	_ = l.Close()
	want := map[string]*bytes.Buffer{"stdout": {}, "stderr": {}}
	var files []*os.File
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for name, path := range map[string]string{"stdout": outp, "stderr": errp} {
		f := shim(t, path)
		files = append(files, f)
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				line := fmt.Sprintf("%s %d %s\n", name, i, strings.Repeat("z", i%1000))
				want[name].WriteString(line)
				_, _ = f.WriteString(line)
			}
		})
	}
	for range 40 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "LOGS_TEST_DIR="+dir)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(5+r.IntN(25)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	// The last one drains.
	close(stop)
	last, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	var run sync.WaitGroup
	run.Go(func() { _ = last.Run(context.Background()) })
	wg.Wait()
	for _, f := range files {
		_ = f.Close()
	}
	<-last.Drained()
	_ = last.Remove()
	run.Wait()
	got := parse(t, o.Path)
	for name, w := range want {
		if !bytes.Equal(got[name], w.Bytes()) {
			i := 0
			for i < min(len(got[name]), w.Len()) && got[name][i] == w.Bytes()[i] {
				i++
			}
			t.Errorf("%s: %d bytes logged, %d written; first difference at %d", name, len(got[name]), w.Len(), i)
		}
	}
	t.Logf("%d bytes through 40 kills", want["stdout"].Len()+want["stderr"].Len())
}

func childOptions(dir string) Options {
	return Options{Dir: filepath.Join(dir, "io"), Path: filepath.Join(dir, "0.log"), Stdout: true, Stderr: true}
}

func pumpForEver(dir string) {
	l, err := Open(childOptions(dir))
	if err != nil {
		panic(err)
	}
	_ = l.Run(context.Background())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func (l *Log) failing() error {
	if l.mu.TryLock() {
		defer l.mu.Unlock()
		return l.mu.stats.LastErr
	}
	return errors.New("at work")
}

func BenchmarkPump(b *testing.B) {
	d := b.TempDir()
	o := Options{Dir: filepath.Join(d, "io"), Path: filepath.Join(d, "0.log"), Stdout: true}
	l, err := Create(o)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(context.Background()) })
	_, out, _ := l.FIFOs()
	f, err := os.OpenFile(out, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	l.Started()
	line := []byte(strings.Repeat("x", 99) + "\n")
	block := bytes.Repeat(line, 640)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		_, _ = f.Write(block)
	}
	_ = f.Close()
	<-l.Drained()
	_ = l.Remove()
	wg.Wait()
}
