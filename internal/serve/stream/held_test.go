// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
)

// keptWorld is a world whose streams are kept: several berths come after each other, and holders, which
// run in this process, outlive them.
type keptWorld struct {
	*world
	t     *testing.T
	dir   string
	spawn error // of the next holder
	log   *accessLog

	life        context.Context // of holders
	stopHolders context.CancelFunc
	holders     sync.WaitGroup
}

func newKeptWorld(t *testing.T) *keptWorld {
	w := &keptWorld{world: newWorld(t), t: t, dir: t.TempDir(), log: &accessLog{}}
	w.life, w.stopHolders = context.WithCancel(context.Background())
	t.Cleanup(func() {
		w.stopHolders()
		w.holders.Wait()
	})
	return w
}

// CreateExec makes a process that talks through FIFOs.
func (w *keptWorld) CreateExec(ctx context.Context, key Key, r Request) error {
	var ends shimEnds
	for _, s := range []struct {
		path string
		flag int
		put  func(f *os.File)
	}{
		{r.Stdin, os.O_RDONLY, func(f *os.File) { ends.stdin = f }},
		{r.Stdout, os.O_WRONLY, func(f *os.File) { ends.stdout = f }},
		{r.Stderr, os.O_WRONLY, func(f *os.File) { ends.stderr = f }},
	} {
		if s.path == "" {
			continue
		}
		f, err := os.OpenFile(s.path, s.flag, 0)
		if err != nil {
			return err
		}
		s.put(f)
	}
	w.mu.Lock()
	w.ends[w.service.cfg.Dir+"/"+key.String()] = ends
	w.mu.Unlock()
	return w.world.CreateExec(ctx, key, r)
}

// Close implements Tasks.
func (w *keptWorld) Close() {}

// keptBerth is one of the berths.
type keptBerth struct {
	*Server
	keeper *Keeper
	stop   func()
}

// berth starts a berth, which stops at the test's end at the latest.
func (w *keptWorld) berth(change ...func(c *KeeperConfig, s *ServerConfig)) *keptBerth {
	w.t.Helper()
	service, err := New(Config{
		Dir:       w.dir + "/exec",
		Target:    w.target,
		Processes: w,
		Logger:    slog.New(slog.DiscardHandler),
		AccessLog: w.log,
		Stdio:     func(string) (Stdio, error) { return nil, errors.New("there is none") },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	keep := KeeperConfig{
		Dir:       w.dir + "/held",
		Enabled:   true,
		Terminals: true,
		Version:   "1",
		Spawn:     w.hold,
		Shim:      func(context.Context, string) (Shim, error) { return Shim{}, nil },
		Logger:    slog.New(slog.DiscardHandler),
	}
	serve := ServerConfig{Address: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&keep, &serve)
	}
	b := &keptBerth{Server: NewServer(serve, service)}
	if b.keeper, err = NewKeeper(keep, b.Server); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{service.Run, b.keeper.Run, b.Run} {
		parts.Go(func() { _ = run(ctx) })
	}
	b.stop = func() {
		cancel()
		parts.Wait()
	}
	w.t.Cleanup(b.stop)
	until(w.t, "the server serves", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.mu.base != nil
	})
	<-b.keeper.adopted
	return b
}

// hold starts a holder.
func (w *keptWorld) hold(dir string, f *os.File) error {
	if w.spawn != nil {
		return w.spawn
	}
	lis, err := net.FileListener(f)
	if err != nil {
		return err
	}
	w.holders.Go(func() {
		h := newHolder(HolderConfig{
			Dir:      dir,
			Listener: lis.(*net.UnixListener),
			Version:  "1",
			Tasks:    func(Shim) Tasks { return w },
			Logger:   slog.New(slog.DiscardHandler),
		})
		h.server.patience, h.server.interval = time.Second, 20*time.Millisecond
		if err := h.run(w.life); err != nil {
			w.t.Error(err)
		}
	})
	return nil
}

// expectNothingKept waits until nothing is left of any stream.
func (w *keptWorld) expectNothingKept(b *keptBerth) {
	w.t.Helper()
	until(w.t, "no stream is kept", func() bool { return b.keeper.Held() == 0 && w.left() == 0 })
	until(w.t, "the places are given back", func() bool {
		for _, of := range b.Server.service.Budgets() {
			if of.Usage().Used != 0 {
				return false
			}
		}
		return true
	})
	if left, _ := filepath.Glob(w.dir + "/held/*/*/*"); len(left) > 0 {
		w.t.Errorf("%q are left", left)
	}
}

// accessLog keeps in memory what is on record.
type accessLog struct {
	mu   sync.Mutex
	said []string
	hang chan struct{} // until it is closed Begin does not return; nil: it does
	full bool          // no end gets onto the disk
	left []func(bool)  // of ends that have not got onto the disk
}

// stop tells that the ends that have not got onto the disk will not, as the log does when berth stops.
func (l *accessLog) stop() {
	l.mu.Lock()
	left := l.left
	l.left, l.full = nil, false
	l.mu.Unlock()
	for _, recorded := range left {
		recorded(false)
	}
}

func (l *accessLog) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, fmt.Sprintf(format, args...))
}

func (l *accessLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.said, "\n")
}

func (l *accessLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.said)
}

func (l *accessLog) Begin(a Access, noted func([]byte) error) (Visit, error) {
	if noted != nil {
		if err := noted([]byte(a.What)); err != nil {
			return nil, err
		}
	}
	l.say("%s of %s begins: %v", a.What, a.Target.ID, a.Args)
	if l.hang != nil {
		<-l.hang
	}
	return &loggedVisit{l, a.What}, nil
}

func (l *accessLog) Resume(note []byte) (Visit, error) {
	return &loggedVisit{l, string(note) + " of an earlier berth"}, nil
}

type loggedVisit struct {
	log  *accessLog
	what string
}

func (v *loggedVisit) Wrote([]byte)        {}
func (v *loggedVisit) Resized(_, _ uint16) {}
func (v *loggedVisit) End(code int32, err error, in, out int64, recorded func(bool)) {
	v.log.mu.Lock()
	full := v.log.full
	if full {
		v.log.left = append(v.log.left, recorded)
	}
	v.log.mu.Unlock()
	if full {
		return // it waits for the disk
	}
	v.log.say("%s ends: %d %v %d %d", v.what, code, err, in, out)
	if recorded != nil {
		recorded(true)
	}
}

// expectLog waits until something is on record, and nothing else.
func (w *keptWorld) expectLog(lines ...string) {
	w.t.Helper()
	until(w.t, "the end is on record", func() bool { return w.log.count() >= len(lines) })
	if got := w.log.text(); got != strings.Join(lines, "\n") {
		w.t.Errorf("on record is\n%s", got)
	}
}

// dialExec runs the program, and returns once its client has heard of it.
func (w *keptWorld) dialExec(b *keptBerth) *websocket.Conn {
	w.t.Helper()
	resp, err := b.Exec(w.t.Context(), execRequest())
	if err != nil {
		w.t.Fatal(err)
	}
	conn := dialSocket(w.t, resp.GetUrl())
	w.t.Cleanup(func() { _ = conn.Close() })
	awaitHere(w.t, conn)
	return conn
}

// here is a program that says that it is there before it does anything else.
func here(program func(p *fakeProcess) uint32) func(p *fakeProcess) uint32 {
	return func(p *fakeProcess) uint32 {
		_, _ = io.WriteString(p.stdout, "here")
		return program(p)
	}
}

// awaitHere waits until a client has heard that its program is there.
func awaitHere(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	for {
		var b []byte
		if err := websocket.Message.Receive(conn, &b); err != nil {
			t.Fatal(err)
		}
		if string(b) == "\x01here" {
			return
		}
	}
}

func sendHello(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	if err := websocket.Message.Send(conn, []byte("\x00hello\n")); err != nil {
		t.Fatal(err)
	}
}

// PROPERTIES 47: the next berth has the stream of an earlier one, its place and its record.
func TestAStreamOutlivesBerth(t *testing.T) {
	w := newKeptWorld(t)
	w.program = here(echo)
	first := w.berth()
	conn := w.dialExec(first)
	until(t, "the holder has it", func() bool { return first.keeper.Held() == 1 })
	first.stop()
	second := w.berth()
	if n := second.Server.service.streams.Of("p1"); n != 1 || second.keeper.Held() != 1 {
		t.Errorf("%d streams have a place, and %d are kept", n, second.keeper.Held())
	}
	sendHello(t, conn)
	if got := receive(conn); got[1] != "hello\n" || !strings.Contains(got[3], `"42"`) {
		t.Errorf("got %q", got)
	}
	w.expectNothingKept(second)
	w.expectLog("exec of c1 begins: [cat]", "exec of an earlier berth ends: 42 <nil> 6 10")
}

// PROPERTIES 43 and 47: no berth is there when the stream ends.
func TestAnEndWhileBerthIsAwayIsOnRecordLater(t *testing.T) {
	w := newKeptWorld(t)
	w.program = here(echo)
	first := w.berth()
	conn := w.dialExec(first)
	first.stop()
	sendHello(t, conn)
	if got := receive(conn); got[1] != "hello\n" || !strings.Contains(got[3], `"42"`) {
		t.Errorf("got %q", got)
	}
	w.holders.Wait() // it has nothing left to do
	w.expectLog("exec of c1 begins: [cat]")
	second := w.berth()
	w.expectNothingKept(second)
	w.expectLog("exec of c1 begins: [cat]", "exec of an earlier berth ends: 42 <nil> 6 10")
}

// PROPERTIES 43 and 47: berth goes away after an access is on record as begun, and before the holder knows of
// it. The client is told, the command does not run, and the next berth puts the end on record.
func TestAnAccessThatIsCutOffAsItBeginsEndsOnRecord(t *testing.T) {
	w := newKeptWorld(t)
	w.program = here(echo)
	w.log.hang = make(chan struct{})
	defer close(w.log.hang)
	first := w.berth()
	resp, err := first.Exec(t.Context(), execRequest())
	if err != nil {
		t.Fatal(err)
	}
	conn := dialSocket(t, resp.GetUrl())
	defer conn.Close()
	w.expectLog("exec of c1 begins: [cat]")
	first.stop()
	second := w.berth()
	if got := receive(conn); !strings.Contains(got[3], "berth was stopped or restarted") {
		t.Errorf("got %q", got)
	}
	w.expectNothingKept(second)
	w.expectLog("exec of c1 begins: [cat]", "exec of an earlier berth ends: 0 it was cut off as it began 0 0")
}

// PROPERTIES 43 and 47: berth goes away before the end of an access is on the disk. What was noted of it stays for
// the next berth, which puts the end on record.
func TestAnEndThatIsNotOnTheDiskIsOnRecordLater(t *testing.T) {
	w := newKeptWorld(t)
	w.program = here(echo)
	w.log.full = true
	first := w.berth()
	conn := w.dialExec(first)
	sendHello(t, conn)
	if got := receive(conn); !strings.Contains(got[3], `"42"`) {
		t.Errorf("got %q", got)
	}
	until(t, "the stream has given its place back", func() bool { return first.Server.service.streams.Usage().Used == 0 })
	w.log.stop()                      // before the streams do
	time.Sleep(50 * time.Millisecond) // for a keeper that would forget the end
	first.stop()
	second := w.berth()
	w.expectNothingKept(second)
	w.expectLog("exec of c1 begins: [cat]", "exec of an earlier berth ends: 42 <nil> 6 10")
}

// logged is what was logged.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// PROPERTIES 33 and 47: what a holder has left that was killed cannot be read at once. Nothing is taken for gone:
// its process ends, and its access ends on record with what the holder has noted, once it can be read.
func TestWhatCannotBeReadOfAStreamIsNotGone(t *testing.T) {
	for _, unreadable := range []string{streamFile, "visit" + visitBegun, "visit" + visitEnded} {
		t.Run(unreadable, func(t *testing.T) {
			w := newKeptWorld(t)
			dir := filepath.Join(w.dir, "held/holder/stream")
			if err := os.MkdirAll(filepath.Join(dir, execDir), 0o700); err != nil {
				t.Fatal(err)
			}
			for name, v := range map[string]any{
				streamFile:           held{Kind: heldExec, ID: "c1", PodID: "p1"},
				"visit" + visitBegun: []byte("exec"),
				"visit" + visitEnded: visitEnd{Code: 7, In: 1, Out: 2},
			} {
				if err := write(filepath.Join(dir, name), v); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, unreadable)
			if err := os.Rename(path, dir+".aside"); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(path, 0o700); err != nil { // reading it fails, as it does without descriptors
				t.Fatal(err)
			}
			log := &logged{}
			first := w.berth(func(c *KeeperConfig, _ *ServerConfig) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			until(t, "berth cannot find out", func() bool { return strings.Contains(log.text(), "tried again") })
			first.stop()
			if got := w.log.text(); got != "" {
				t.Errorf("on record is %q", got)
			}
			if err := errors.Join(os.Remove(path), os.Rename(dir+".aside", path)); err != nil {
				t.Fatal(err)
			}
			second := w.berth()
			w.expectNothingKept(second)
			w.expectLog("exec of an earlier berth ends: 7 <nil> 1 2")
			until(t, "the directory of the holder is removed", func() bool {
				_, err := os.Stat(filepath.Dir(dir))
				return errors.Is(err, fs.ErrNotExist)
			})
		})
	}
}

// PROPERTIES 43: an access that begins while its stream ends is on record with its end.
func TestAnAccessThatBeginsAsItsStreamEndsEndsOnRecord(t *testing.T) {
	w := newKeptWorld(t)
	b := w.berth()
	dir := filepath.Join(w.dir, "held/h/s")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := b.keeper.newHolder(filepath.Dir(dir))
	if err := write(filepath.Join(dir, streamFile), held{Kind: heldForward, ID: "p1", PodID: "p1"}); err != nil {
		t.Fatal(err)
	}
	s, err := b.keeper.adopt(h, "s")
	if err != nil {
		t.Fatal(err)
	}
	w.log.mu.Lock()
	w.log.hang = make(chan struct{})
	w.log.mu.Unlock()
	begun := make(chan error, 1)
	go func() {
		_, err := b.keeper.begin(s, 80)
		begun <- err
	}()
	until(t, "it is on record", func() bool { return w.log.count() == 1 })
	finished := make(chan struct{})
	go func() { defer close(finished); b.keeper.finish(s, nil) }()
	until(t, "the stream ends", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.finishing
	})
	if _, err := b.keeper.begin(s, 81); err == nil {
		t.Error("an access begins on a stream that has ended")
	}
	close(w.log.hang)
	if err := <-begun; err != nil {
		t.Error(err)
	}
	<-finished
	w.expectLog("port-forward of p1 begins: []", "port-forward ends: 0 it is not known how it has ended 0 0")
}

// PROPERTIES 47: a holder that has no descriptor left when berth comes lets it in later, and says which streams it has, however
// many those are.
func TestAHolderLetsBerthInLater(t *testing.T) {
	dir := t.TempDir()
	lis, err := listenIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	h := newHolder(HolderConfig{Dir: dir, Listener: lis, Version: "1", Logger: slog.New(slog.DiscardHandler)})
	defer h.server.service.end()
	for i := range 2500 {
		h.mu.streams[fmt.Sprintf("%032d", i)] = &carried{}
	}
	if err := lis.SetDeadline(time.Now()); err != nil { // accepting fails
		t.Fatal(err)
	}
	go h.accept()
	l, err := dialHolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := lis.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	named := 0
	for more := true; more; {
		w, _, err := l.receive(make([]byte, maxWord))
		if err != nil || w.Say != sayHello {
			t.Fatalf("berth hears %q, %v", w.Say, err)
		}
		named, more = named+len(w.Streams), w.More
	}
	if named != 2500 {
		t.Errorf("%d streams of 2500 are named", named)
	}
	_ = lis.Close()
}

// A holder's streams cannot be listed for long. The log says so less and less often, and anew the next time.
func TestStreamsThatCannotBeListedDoNotFillTheLog(t *testing.T) {
	w := newKeptWorld(t)
	log := &logged{}
	k := w.berth(func(c *KeeperConfig, _ *ServerConfig) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) }).keeper
	dir := t.TempDir()
	lis, err := listenIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	h := k.newHolder(filepath.Join(dir, "file"))
	if err := write(h.dir, held{}); err != nil { // a file has no list
		t.Fatal(err)
	}
	converse := func() error {
		t.Helper()
		l, err := dialHolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		holder, err := lis.AcceptUnix()
		if err == nil {
			err = link{holder}.send(word{Say: sayHello, Version: "1"}, nil)
			_ = holder.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return k.converse(h, l)
	}
	for range 100 {
		if err := converse(); err == nil {
			t.Fatal("the streams are listed")
		}
	}
	if n := strings.Count(log.text(), "cannot be listed"); n != 7 {
		t.Errorf("100 attempts have %d lines in the log", n)
	}
	if err := os.Remove(h.dir); err != nil {
		t.Fatal(err)
	}
	_ = converse() // it ends as the holder does
	if err := write(h.dir, held{}); err != nil {
		t.Fatal(err)
	}
	if err := converse(); err == nil || strings.Count(log.text(), "cannot be listed") != 8 {
		t.Errorf("the next time it is not said: %v", err)
	}
}

// PROPERTIES 38: connections that wait for berth count as those that there are.
func TestConnectionsThatWaitForBerthAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder(HolderConfig{Logger: slog.New(slog.DiscardHandler)})
		defer h.server.service.end()
		c := &carried{
			holder: h,
			held:   held{Kind: heldForward, PodID: "p1"},
			conn:   &conn{gone: t.Context()},
			idle:   make(chan struct{}),
		}
		var waiting sync.WaitGroup
		var refused atomic.Int32
		for range 3000 {
			waiting.Go(func() {
				if _, err := c.Begin(Access{}, nil); errdefs.IsResourceExhausted(err) {
					refused.Add(1)
				}
			})
		}
		waiting.Wait()
		if used := h.shares.ports.Usage(); refused.Load() == 0 || used.Used != 0 {
			t.Errorf("%d of 3000 were refused, and %d have a place", refused.Load(), used.Used)
		}
	})
}

// The text of an error that is too long for a word is cut.
func TestTheErrorOfAStartFitsIntoAWord(t *testing.T) {
	text := bounded(strings.Repeat("é", 70<<10))
	b, err := json.Marshal(word{Say: sayAnswer, Err: text})
	if err != nil || len(b) > maxWord || !strings.HasSuffix(text, "é...") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// PROPERTIES 29 and 47: the process ends with its container, which the next berth knows of.
func TestAKeptStreamEndsWithItsContainer(t *testing.T) {
	for name, restarted := range map[string]bool{"of this berth": false, "of an earlier berth": true} {
		t.Run(name, func(t *testing.T) {
			w := newKeptWorld(t)
			w.program = here(untilKilled)
			b := w.berth()
			conn := w.dialExec(b)
			if restarted {
				b.stop()
			}
			close(w.ended)
			if restarted {
				b = w.berth()
			}
			if got := receive(conn); !strings.Contains(got[3], `"137"`) {
				t.Errorf("the client is told %q", got)
			}
			w.expectNothingKept(b)
		})
	}
}

// PROPERTIES 29 and 47: the process ends with its client, whether berth is there or not.
func TestAKeptStreamEndsWithItsClient(t *testing.T) {
	for name, away := range map[string]bool{"while berth is there": false, "while berth is away": true} {
		t.Run(name, func(t *testing.T) {
			w := newKeptWorld(t)
			w.program = here(untilKilled)
			b := w.berth()
			conn := w.dialExec(b)
			if away {
				b.stop()
			}
			_ = conn.Close()
			until(t, "the process has ended", func() bool { return w.left() == 0 })
			if away {
				w.holders.Wait()
				b = w.berth()
			}
			w.expectNothingKept(b)
		})
	}
}

// A holder that is stopped, as all processes are when the machine is shut down, tells its clients so.
func TestAHolderThatIsStoppedTellsItsClients(t *testing.T) {
	w := newKeptWorld(t)
	w.program = here(untilKilled)
	b := w.berth()
	conn := w.dialExec(b)
	w.stopHolders()
	if got := receive(conn); !strings.Contains(got[3], `"137"`) {
		t.Errorf("the client is told %q", got)
	}
	w.holders.Wait()
	w.expectNothingKept(b)
}

// PROPERTIES 47: a holder with other code than this berth keeps what it has, and gets nothing more.
func TestAHolderOfAnotherVersionGetsNothingMore(t *testing.T) {
	w := newKeptWorld(t)
	w.program = here(echo)
	first := w.berth()
	conn := w.dialExec(first)
	first.stop()
	second := w.berth(func(c *KeeperConfig, _ *ServerConfig) { c.Version = "2" })
	until(t, "it gets nothing more", func() bool { return !second.keeper.hasCurrent() })
	sendHello(t, conn)
	if got := receive(conn); !strings.Contains(got[3], `"42"`) {
		t.Errorf("got %q", got)
	}
	w.holders.Wait() // although berth is there
	w.expectNothingKept(second)
}

// PROPERTIES 47: what a holder cannot have is served as ever.
func TestWhatCannotBeKeptIsServedByBerth(t *testing.T) {
	for name, change := range map[string]func(w *keptWorld, k *KeeperConfig, s *ServerConfig){
		"it is off":            func(_ *keptWorld, k *KeeperConfig, _ *ServerConfig) { k.Enabled = false },
		"TLS":                  func(_ *keptWorld, _ *KeeperConfig, s *ServerConfig) { s.TLS = certificate(t) },
		"no process starts":    func(w *keptWorld, _ *KeeperConfig, _ *ServerConfig) { w.spawn = errors.New("no") },
		"the shim has no file": func(_ *keptWorld, k *KeeperConfig, _ *ServerConfig) { k.Shim = noShim },
	} {
		t.Run(name, func(t *testing.T) {
			w := newKeptWorld(t)
			w.program = here(echo)
			b := w.berth(func(k *KeeperConfig, s *ServerConfig) { change(w, k, s) })
			conn := w.dialExec(b)
			if n := b.keeper.Held(); n != 0 {
				t.Errorf("%d streams are kept", n)
			}
			sendHello(t, conn)
			if got := receive(conn); got[1] != "hello\n" || !strings.Contains(got[3], `"42"`) {
				t.Errorf("got %q", got)
			}
			w.expectNothingKept(b)
		})
	}
}

func noShim(context.Context, string) (Shim, error) { return Shim{}, errors.New("no") }

// PROPERTIES 47: a connection that is forwarded goes on while berth is away. A new one waits for berth, so
// that it is on record before it begins.
func TestAPortForwardOutlivesBerth(t *testing.T) {
	w := newKeptWorld(t)
	pod, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	go func() {
		for {
			conn, err := pod.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(pod.Addr().String())
	first := w.berth()
	resp, err := first.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	client, _ := dialSPDY(t, resp.GetUrl(), "portforward.k8s.io")
	connect := func(request string) httpstream.Stream {
		var data httpstream.Stream
		for _, kind := range []string{"error", "data"} {
			if data, err = client.CreateStream(http.Header{"Streamtype": {kind}, "Port": {port}, "Requestid": {request}}); err != nil {
				t.Fatal(err)
			}
		}
		return data
	}
	echoes := func(s httpstream.Stream, from *bufio.Reader) {
		t.Helper()
		if _, err := io.WriteString(s, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := from.ReadString('\n'); line != "hello\n" {
			t.Fatalf("got %q: %v", line, err)
		}
	}
	one := connect("1")
	from := bufio.NewReader(one)
	echoes(one, from)
	first.stop()
	echoes(one, from)
	two := connect("2")
	begun := w.log.text()
	second := w.berth()
	echoes(two, bufio.NewReader(two))
	if strings.Contains(begun, "\n") || strings.Count(w.log.text(), "begins") != 2 {
		t.Errorf("before there was a berth, there was on record\n%s\nand then\n%s", begun, w.log.text())
	}
	echoes(one, from)
	_ = client.Close()
	w.expectNothingKept(second)
	if n := strings.Count(w.log.text(), "ends: 0 <nil>"); n != 2 {
		t.Errorf("on record is\n%s", w.log.text())
	}
}

// PROPERTIES 43: without a berth for ten seconds, a connection is refused that cannot be on record.
func TestAConnectionWaitsTenSecondsForBerth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		h := newHolder(HolderConfig{Logger: slog.New(slog.DiscardHandler)})
		_, err := h.askPatiently(t.Context(), word{Say: sayBegin})
		if !errors.Is(err, errAway) || time.Since(began) != berthTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		h.server.service.end()
	})
}

// A client that never comes back to what it has asked for leaves nothing.
func TestAKeptClientThatAsksForNothingLeavesNothing(t *testing.T) {
	w := newKeptWorld(t)
	b := w.berth()
	resp, err := b.Exec(t.Context(), execRequest())
	if err != nil {
		t.Fatal(err)
	}
	at := strings.TrimPrefix(resp.GetUrl(), "http://")
	host, path, _ := strings.Cut(at, "/")
	tcp, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Fprintf(tcp, "GET /%s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host)
	answer, _ := io.ReadAll(tcp)
	if !strings.Contains(string(answer), "400 Bad Request") {
		t.Errorf("got %q", answer)
	}
	_ = tcp.Close()
	w.expectNothingKept(b)
	w.expectLog()
}
