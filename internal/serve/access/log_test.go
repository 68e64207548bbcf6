// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/base/event"
	"berth/internal/heart/pod"
	"berth/internal/serve/stream"
)

// told keeps the events that are noted.
type told struct {
	mu     sync.Mutex
	events []event.Event
}

func (n *told) note(_ string, e event.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, e)
}

func (n *told) kinds() (kinds []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		kinds = append(kinds, event.Kind(e))
	}
	return kinds
}

// start runs a log until stop is called.
func start(t *testing.T, cfg Config) (*Log, *told, func()) {
	t.Helper()
	n := &told{}
	cfg.Note = n.note
	a := New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return a, n, stop
}

var (
	kubelet = event.Client{Pid: 812, Name: "kubelet"}
	crictl  = event.Client{Pid: 4711, UID: 1000, Name: "crictl"}
)

func access(what string, by event.Client, args ...string) stream.Access {
	return stream.Access{
		What: what,
		By:   by,
		Args: args,
		Target: pod.Target{
			ID:        "c1",
			PodConfig: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "shop", Name: "web"}},
			Config:    &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "app"}},
		},
	}
}

func lines(t *testing.T, path string) (all []Record) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func verify(head string, paths ...string) (Report, error) {
	v := NewVerifier(head)
	for _, p := range paths {
		f, err := os.Open(p)
		if err != nil {
			return Report{}, err
		}
		err = v.Add(f)
		_ = f.Close()
		if err != nil {
			return v.Report, fmt.Errorf("%s: %w", filepath.Base(p), err)
		}
	}
	return v.Result()
}

// The end of a command that never ran, and of what is not a command, had the code 0.
func TestOnlyACommandThatHasEndedHasACode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "audit.log")
	a, n, stop := start(t, Config{File: path})
	for _, tt := range []struct {
		what string
		err  error
		code bool
	}{{"exec", nil, true}, {"exec", errors.New("no such file"), false}, {"attach", nil, false}, {"checkpoint", nil, false}} {
		v, err := a.Begin(access(tt.what, crictl))
		if err != nil {
			t.Fatal(err)
		}
		v.End(0, tt.err, 0, 0)
		if e := n.events[len(n.events)-1].(event.AccessEnded); (e.Code != nil) != tt.code {
			t.Errorf("%s, %v: the event has the code %v", tt.what, tt.err, e.Code)
		}
	}
	stop()
	codes := 0
	for _, l := range lines(t, path) {
		if l.Code != nil {
			codes++
		}
	}
	if codes != 1 {
		t.Errorf("%d lines have a code", codes)
	}
}

// PROPERTIES 43: an access is on record before it begins, with who, what and where, and when it has
// ended, with the code and the bytes.
func TestAnAccessIsOnRecordBeforeItBegins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "audit.log")
	a, n, stop := start(t, Config{File: path})
	v, err := a.Begin(access("exec", crictl, "cat", "/etc/shadow"))
	if err != nil {
		t.Fatal(err)
	}
	got := lines(t, path) // it is there at once
	if len(got) != 2 || got[0].What != Started || got[1].What != Began || !slices.Equal(got[1].Args, []string{"cat", "/etc/shadow"}) ||
		got[1].By != crictl || got[1].Pod != "web" || got[1].Namespace != "shop" || got[1].Container != "app" || got[1].ID != "c1" {
		t.Errorf("%+v", got)
	}
	v.End(1, nil, 5, 7)
	stop()
	got = lines(t, path)
	if len(got) != 3 || got[2].What != Ended || *got[2].Code != 1 || got[2].In != 5 || got[2].Out != 7 || got[2].Session != got[1].Session {
		t.Errorf("%+v", got)
	}
	if kinds := n.kinds(); !slices.Equal(kinds, []string{"AccessBegan", "AccessEnded"}) {
		t.Errorf("%v", kinds)
	}
	if r, err := verify("", path); err != nil || r.Lines != 3 || r.Number != 3 || r.Torn+r.Missing != 0 || r.Before != "" {
		t.Errorf("%+v %v", r, err)
	}
}

// probeOf is a probe of the kubelet's.
func probeOf(args ...string) stream.Access {
	acc := access("exec-sync", kubelet, args...)
	acc.Timeout = time.Second
	return acc
}

// PROPERTIES 43: whatever is called kubelet could run any command with ExecSync without a record,
// and the kubelet's own /run does that for whoever may use it. A command is on record when it runs
// in a container for the first time, and each time if it has no timeout, as no probe has. Probes
// that come again are counted alone, and none waits for the disk.
func TestACommandOfTheKubeletIsOnRecordWhenItIsNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	probes := 0
	a, n, stop := start(t, Config{File: path, Probed: func() { probes++ }})
	for _, acc := range []stream.Access{
		probeOf("healthy"),
		probeOf("healthy"),
		probeOf("healthy", "now"),
		probeOf("healthy"),
		access("exec-sync", kubelet, "run"),
		access("exec-sync", kubelet, "run"),
		access("checkpoint", kubelet, "/tmp/c1.tar"),
	} {
		v, err := a.Begin(acc)
		if err != nil {
			t.Fatal(err)
		}
		v.End(0, nil, 0, 0)
	}
	stop()
	var began []string
	ended := 0
	for _, r := range lines(t, path) {
		switch r.What {
		case Began:
			began = append(began, r.Access+" "+strings.Join(r.Args, " "))
		case Ended:
			ended++
		}
	}
	want := []string{"exec-sync healthy", "exec-sync healthy now", "exec-sync run", "exec-sync run", "checkpoint /tmp/c1.tar"}
	if !slices.Equal(began, want) || ended != len(want) || probes != 4 || len(n.kinds()) != 6 {
		t.Errorf("%q began, %d ended; %d probes; %q in the timeline", began, ended, probes, n.kinds())
	}
}

// PROPERTIES 43: a full disk for the record makes no container unhealthy, and what is known of
// containers that have ended is forgotten.
func TestProbesAreNeitherRefusedNorRememberedForEver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.Mkdir(path, 0o700); err != nil { // nothing can be written into a directory
		t.Fatal(err)
	}
	a, _, _ := start(t, Config{File: path})
	ended := make(chan struct{})
	close(ended)
	for i := range 2 * maxCommands {
		acc := probeOf("healthy", fmt.Sprint(i))
		if i%2 == 0 {
			acc.Target.ID, acc.Target.Ended = fmt.Sprint(i), ended
		}
		if _, err := a.Begin(acc); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(a.probes.of); n > 2 || len(a.probes.of["c1"].known) != maxCommands {
		t.Errorf("%d containers are known, and %d commands of one", n, len(a.probes.of["c1"].known))
	}
}

// PROPERTIES 43: whatever is done to a line breaks the chain; what is taken from the end is seen by
// whoever has kept the hash of the last line.
func TestWhatIsDoneToALineIsSeen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	a, _, stop := start(t, Config{File: path})
	for i := range 10 {
		v, err := a.Begin(access("exec", crictl, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		v.End(0, nil, 0, 0)
	}
	stop()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	good, err := verify("", path)
	if err != nil || good.Lines < 11 {
		t.Fatalf("%+v %v", good, err)
	}
	all := bytes.SplitAfter(whole, []byte("\n"))
	all = all[:len(all)-1]
	attacked := filepath.Join(dir, "attacked.log")
	try := func(name string, b []byte, head string) {
		if err := os.WriteFile(attacked, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := verify(head, attacked); err == nil {
			t.Errorf("%s: nothing is seen, %+v", name, r)
		}
	}
	for i := range all {
		changed := slices.Clone(all)
		changed[i] = bytes.Replace(all[i], []byte("4711"), []byte("4712"), 1)
		if !bytes.Equal(changed[i], all[i]) {
			head := ""
			if i == len(all)-1 {
				head = good.Head
			}
			try(fmt.Sprint("line ", i, " is changed"), bytes.Join(changed, nil), head)
		}
		if i > 0 && i < len(all)-1 {
			try(fmt.Sprint("line ", i, " is taken out"), bytes.Join(slices.Delete(slices.Clone(all), i, i+1), nil), "")
			try(fmt.Sprint("line ", i, " stands twice"), bytes.Join(slices.Insert(slices.Clone(all), i, all[i]), nil), "")
			try(fmt.Sprint("the lines from ", i, " on are taken away"), bytes.Join(all[:i], nil), good.Head)
			try(fmt.Sprint("line ", i, " is nonsense"), bytes.Join(slices.Replace(slices.Clone(all), i, i+1, []byte("x\n")), nil), "")
		}
	}
	if _, err := verify(good.Head, path); err != nil {
		t.Error(err)
	}
}

// The file is renamed, berth is restarted, a power cut tears the last line: the chain goes on, over
// all files, and says what happened.
func TestTheChainGoesOn(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "audit.log"), filepath.Join(dir, "audit.log.1")
	one := func(a *Log, arg string) {
		t.Helper()
		if _, err := a.Begin(access("exec", crictl, arg)); err != nil {
			t.Fatal(err)
		}
	}
	a, _, stop := start(t, Config{File: path})
	one(a, "first")
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	one(a, "in the next file")
	if r, err := verify("", old, path); err != nil || r.Lines != 4 {
		t.Errorf("after a rename: %+v %v", r, err)
	}
	if r, err := verify("", path); err != nil || r.Before == "" {
		t.Errorf("the second file alone: %+v %v", r, err)
	}
	stop()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"number":17,"before":"ab`); err != nil {
		t.Fatal(err)
	}
	if r, err := verify("", old, path); err != nil || r.Torn != 1 {
		t.Errorf("a torn end: %+v %v", r, err)
	}
	a, _, stop = start(t, Config{File: path})
	one(a, "after the power cut")
	stop()
	if r, err := verify("", old, path); err != nil || r.Lines != 6 || r.Torn != 1 {
		t.Errorf("after a torn end: %+v %v", r, err)
	}
	a, _, stop = start(t, Config{File: path})
	one(a, "after a restart")
	stop()
	if r, err := verify("", old, path); err != nil || r.Lines != 8 {
		t.Errorf("after a restart: %+v %v", r, err)
	}
}

// The disk takes nothing just after the file was renamed: the next file is chained to the old one
// all the same.
func TestTheChainGoesOnAfterAFullDisk(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "audit.log"), filepath.Join(dir, "audit.log.1")
	a, _, _ := start(t, Config{File: path})
	for _, arg := range []string{"first", "refused", "next"} {
		_, err := a.Begin(access("exec", crictl, arg))
		if refused := arg == "refused"; refused != (err != nil) {
			t.Fatalf("%s: %v", arg, err)
		}
		switch arg {
		case "first":
			err = errors.Join(os.Rename(path, old), os.Mkdir(path, 0o700))
		case "refused":
			err = os.Remove(path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if r, err := verify("", old, path); err != nil || r.Lines != 4 || r.Number != 4 {
		t.Errorf("%+v %v", r, err)
	}
}

// PROPERTIES 43: what cannot be recorded does not happen, or happens and is counted, as configured.
func TestAFullDiskFailsAsConfigured(t *testing.T) {
	dir := t.TempDir()
	for _, open := range []bool{false, true} {
		path := filepath.Join(dir, fmt.Sprint(open))
		if err := os.Mkdir(path, 0o700); err != nil { // nothing can be written into a directory
			t.Fatal(err)
		}
		a, n, _ := start(t, Config{File: path, Open: open})
		v, err := a.Begin(access("exec", crictl, "sh"))
		if open {
			if err != nil {
				t.Fatal(err)
			}
			v.End(0, nil, 0, 0)
			if kinds := n.kinds(); !slices.Equal(kinds, []string{"AccessBegan", "AccessEnded"}) {
				t.Error(kinds)
			}
			for range 3 * maxWaiting {
				a.file.writeLater(Record{What: Began})
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if r, err := verify("", path); err == nil && r.Missing > maxWaiting && r.Lines > maxWaiting {
					break
				}
				if time.Now().After(end) {
					r, err := verify("", path)
					t.Fatalf("%+v %v", r, err)
				}
			}
			continue
		}
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "audit.on_error") {
			t.Errorf("%v", err)
		}
		if kinds := n.kinds(); !slices.Equal(kinds, []string{"AccessRefused"}) {
			t.Error(kinds)
		}
	}
}

// PROPERTIES 12: lines come while the disk fails, again and again. What waits for it stays within its bounds.
func TestWhatWaitsForADiskThatFailsIsBounded(t *testing.T) {
	f := newFile(t.TempDir(), slog.New(slog.DiscardHandler)) // nothing can be written into a directory
	came := 0
	for range 3 {
		begins, ends := make(chan error), make(chan error) // between these the lines come
		f.mu.waiting = append(f.mu.waiting, wanted{done: begins}, wanted{done: ends})
		flushed := make(chan error)
		go func() { flushed <- f.flush() }()
		<-begins
		for range 2 * maxWaiting {
			came++
			f.writeLater(Record{What: Ended})
		}
		<-ends
		if err := <-flushed; err == nil {
			t.Fatal("the disk does not fail")
		}
		if n := len(f.mu.waiting); n > maxWaiting {
			t.Errorf("%d lines wait", n)
		}
	}
	if waiting := len(f.mu.waiting); f.mu.missing != came-waiting {
		t.Errorf("of %d lines %d wait, and %d are counted as missing", came, waiting, f.mu.missing)
	}
	f.path = filepath.Join(f.path, "audit.log")
	if err := f.flush(); err != nil {
		t.Fatal(err)
	}
	if r, err := verify("", f.path); err != nil || r.Missing+r.Lines != came+2 || f.mu.missing != 0 {
		t.Errorf("of %d lines %d are left to be counted: %+v %v", came, f.mu.missing, r, err)
	}
	f.close()
}

// A disk that does not answer holds up nobody for long.
func TestADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Config{File: "/nowhere", Note: func(string, event.Event) {}}) // it does not run
		began := time.Now()
		if _, err := a.Begin(access("exec", crictl, "sh")); !errdefs.IsUnavailable(err) || time.Since(began) != beginTimeout {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// What is not a regular file is refused, and a link is not followed.
func TestALinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	for name, plant := range map[string]func(path string) error{
		"link": func(path string) error { return os.Symlink(filepath.Join(dir, "elsewhere"), path) },
		"fifo": func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		path := filepath.Join(dir, name)
		if err := plant(path); err != nil {
			t.Fatal(err)
		}
		a, _, stop := start(t, Config{File: path})
		if _, err := a.Begin(access("exec", crictl, "sh")); err == nil {
			t.Errorf("%s: it is written to", name)
		}
		stop()
	}
	if _, err := os.Stat(filepath.Join(dir, "elsewhere")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the link was followed")
	}
}

// What a terminal shows is an asciicast that is whole at any time, and bounded.
func TestTheSessionOfATerminalIsKept(t *testing.T) {
	dir := t.TempDir()
	a, _, _ := start(t, Config{Sessions: dir})
	acc := access("exec", crictl, "sh")
	acc.Terminal = true
	v, err := a.Begin(acc)
	if err != nil {
		t.Fatal(err)
	}
	v.Resized(120, 50)
	v.Wrote([]byte("caf\xc3"))
	v.Wrote([]byte("\xa9\n"))
	v.End(0, nil, 0, 0)
	v.Wrote([]byte("too late"))
	var b []byte
	for end := time.Now().Add(30 * time.Second); bytes.Count(b, []byte("\n")) < 4; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s", b)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*.cast"))
		if len(files) == 1 {
			b, _ = os.ReadFile(files[0])
		}
	}
	var head struct {
		Version int
		Title   string
	}
	got := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	if err := json.Unmarshal(got[0], &head); err != nil || head.Version != 2 || head.Title != "shop/web/app" {
		t.Errorf("%s %v", got[0], err)
	}
	for i, want := range []string{`"r","120x50"]`, `"o","caf"]`, `"o","é\n"]`} {
		if !bytes.HasSuffix(got[i+1], []byte(want)) {
			t.Errorf("%s, want %s", got[i+1], want)
		}
	}
}

// A command is recorded up to a bound.
func TestALongCommandIsShortened(t *testing.T) {
	got := bounded([]string{"sh", "-c", strings.Repeat("x", maxArgs), "more", "and more"})
	if len(got) != 4 || len(strings.Join(got, "")) > maxArgs+64 || got[3] != "... 2 more" {
		t.Errorf("%d %v", len(got), got[3:])
	}
}

// BenchmarkProbe is what a probe costs.
func BenchmarkProbe(b *testing.B) {
	a := New(Config{File: "/nowhere"})
	acc := probeOf("true")
	b.ReportAllocs()
	for b.Loop() {
		v, err := a.Begin(acc)
		if err != nil {
			b.Fatal(err)
		}
		v.End(0, nil, 0, 0)
	}
}
