// SPDX-License-Identifier: Apache-2.0

package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth/internal/base/clock"
	"berth/internal/base/exit"
)

// collector is a watcher whose loop runs, and the facts that it reported.
type collector struct {
	*Watcher
	mu    sync.Mutex
	facts map[string][]exit.Fact
	more  chan struct{}
}

func collect(t *testing.T) *collector {
	t.Helper()
	return collectWith(t, nil, nil)
}

func collectWith(t *testing.T, keep Keeper, inherited map[string]int) *collector {
	t.Helper()
	h := &collector{facts: map[string][]exit.Fact{}, more: make(chan struct{}, 1)}
	k, err := New(keep, inherited)
	if err != nil {
		t.Fatal(err)
	}
	h.Watcher = k
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := k.Run(ctx, clock.New(nil).Now, func(f exit.Fact) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.facts[f.ID] = append(h.facts[f.ID], f)
			select {
			case h.more <- struct{}{}:
			default:
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		goleak.VerifyNone(t)
	})
	return h
}

func (h *collector) until(ok func(map[string][]exit.Fact) bool) {
	for {
		h.mu.Lock()
		done := ok(h.facts)
		h.mu.Unlock()
		if done {
			return
		}
		<-h.more
	}
}

// last waits for the last fact about id that the kernel can supply.
func (h *collector) last(id string) exit.Fact {
	var f exit.Fact
	h.until(func(m map[string][]exit.Fact) bool {
		l := m[id]
		if len(l) == 0 {
			return false
		}
		f = l[len(l)-1]
		return f.Measured || !h.Exact()
	})
	return f
}

// process starts a shell that runs script once the function that is returned closes its stdin.
func process(t *testing.T, script string) (*exec.Cmd, func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read x; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, func() { _ = in.Close() }
}

func TestExitCodesAreReported(t *testing.T) {
	tests := []struct {
		script string
		code   uint32
	}{
		{"exit 0", 0},
		{"exit 42", 42},
		{"exit 255", 255},
		{"kill -9 $$", 137},
		{"kill -15 $$", 143},
		{"kill -6 $$", 134},
	}
	for _, tt := range tests {
		t.Run(tt.script, func(t *testing.T) {
			h := collect(t)
			cmd, end := process(t, tt.script)
			p, err := h.Watch("c1", Process{Pid: uint32(cmd.Process.Pid)})
			if err != nil {
				t.Fatal(err)
			}
			if p.StartTicks == 0 || p.BootID == "" {
				t.Fatalf("identity not complete: %+v", p)
			}
			if a, watched := h.Look("c1"); a != Alive || !watched {
				t.Fatalf("%v, watched %v before the end", a, watched)
			}
			end()
			_ = cmd.Wait()
			f := h.last("c1")
			if f.At.IsZero() || f.Origin != exit.Kernel {
				t.Fatalf("got %+v", f)
			}
			// An older kernel has the code only until the process is reaped.
			if f.Measured && f.Code != tt.code || !f.Measured && (h.Exact() || f.ExitCode() != exit.CodeUnknown) {
				t.Fatalf("got %+v, want code %d", f, tt.code)
			}
			if a, _ := h.Look("c1"); a != Gone {
				t.Fatalf("%v after its end", a)
			}
		})
	}
}

// As long as the parent does not reap it, a zombie has its wait status, on every kernel.
func TestTheCodeOfAZombieIsRead(t *testing.T) {
	h := collect(t)
	if !h.zombies {
		t.Fatal("this test needs CAP_SYS_PTRACE: run it as root")
	}
	cmd, end := process(t, "exit 42")
	defer func() { _ = cmd.Wait() }()
	if _, err := h.Watch("c1", Process{Pid: uint32(cmd.Process.Pid)}); err != nil {
		t.Fatal(err)
	}
	end()
	h.until(func(m map[string][]exit.Fact) bool { return len(m["c1"]) > 0 })
	if f := h.last("c1"); !f.Measured || f.Code != 42 {
		t.Fatalf("got %+v", f)
	}
}

// Without CAP_SYS_PTRACE the kernel shows a zombie's exit status as 0. That is not a code.
func TestACodeThatTheKernelHidesIsNotReportedAsSuccess(t *testing.T) {
	var w *Watcher
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and do not unlock: the thread ends with this goroutine
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&hdr, &data[0])
		data[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
		err = errors.Join(err, unix.Capset(&hdr, &data[0]))
		if err == nil {
			w, err = New(nil, nil)
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	defer w.close()
	cmd, end := process(t, "exit 42")
	if _, err := w.Watch("c1", Process{Pid: uint32(cmd.Process.Pid)}); err != nil {
		t.Fatal(err)
	}
	end()
	events := make([]unix.EpollEvent, 1)
	for n, err := 0, error(unix.EINTR); n <= 0; n, err = unix.EpollWait(w.ep, events, -1) {
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	if f, ok := w.observe(events[0], clock.Stamped(time.Now())); !ok || f.Measured {
		t.Errorf("got %+v, %v of a zombie whose status is hidden", f, ok)
	}
	_ = cmd.Wait()
}

func TestAReusedPidIsNotTakenForTheRecordedProcess(t *testing.T) {
	h := collect(t)
	me := uint32(os.Getpid())
	st, err := ReadStat(me)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Process{
		"other start time": {Pid: me, StartTicks: st.StartTicks + 1, BootID: bootNow(t)},
		"other boot":       {Pid: me, StartTicks: st.StartTicks, BootID: "00000000-0000-0000-0000-000000000000"},
		"no pid":           {},
	} {
		if _, err := h.Watch(name, p); !errors.Is(err, ErrGone) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := h.Watch("same", Process{Pid: me, StartTicks: st.StartTicks, BootID: bootNow(t)}); err != nil {
		t.Fatal(err)
	}
}

func TestSignalsReachTheProcessAndNoOther(t *testing.T) {
	h := collect(t)
	cmd, end := process(t, "exit 1")
	defer end()
	if _, err := h.Watch("c1", Process{Pid: uint32(cmd.Process.Pid)}); err != nil {
		t.Fatal(err)
	}
	if err := h.Signal("c1", unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if f := h.last("c1"); h.Exact() && f.Code != 137 {
		t.Fatalf("got %+v", f)
	}
	if err := h.Signal("c1", unix.SIGKILL); !errors.Is(err, ErrGone) {
		t.Fatalf("got %v", err)
	}
	h.Forget("c1")
	h.Forget("c1")
	if err := h.Signal("c1", unix.SIGKILL); err == nil {
		t.Fatal("a process that is not watched was sent a signal")
	}
}

func TestManyEndAtOnceAndNoDescriptorIsLeft(t *testing.T) {
	before := openFDs(t)
	t.Run("crowd", func(t *testing.T) {
		h := collect(t)
		const n = 200
		var cmds []*exec.Cmd
		var ends []func()
		for i := range n {
			cmd, end := process(t, fmt.Sprintf("exit %d", i))
			cmds, ends = append(cmds, cmd), append(ends, end)
			if _, err := h.Watch(fmt.Sprint(i), Process{Pid: uint32(cmd.Process.Pid)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, end := range ends {
			end()
		}
		for _, c := range cmds {
			_ = c.Wait()
		}
		for i := range n {
			f := h.last(fmt.Sprint(i))
			if h.Exact() && (f.Code != uint32(i) || !f.Measured) {
				t.Errorf("%d: %+v", i, f)
			}
			if i%2 == 0 {
				h.Forget(fmt.Sprint(i))
			}
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for id, l := range h.facts {
			measured := 0
			for _, f := range l {
				if f.Measured {
					measured++
				}
			}
			if measured > 1 || len(l) > 2 {
				t.Errorf("%d facts about %s: %v", len(l), id, l)
			}
		}
	})
	if after := openFDs(t); after > before {
		t.Fatalf("%d descriptors before, %d after", before, after)
	}
}

// The process was reaped while no berth watched it. The pidfd that the service manager kept has its
// code all the same (PROPERTIES 5).
func TestAnInheritedPidfdReportsAnExitThatNobodySaw(t *testing.T) {
	cmd, end := process(t, "exit 42")
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	end()
	_ = cmd.Wait()
	got := make(chan exit.Fact, 2)
	k, err := New(nil, map[string]int{"c1": fd})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = k.Run(ctx, clock.New(nil).Now, func(f exit.Fact) { got <- f }) })
	defer wg.Wait()
	defer cancel()
	if _, err := k.Watch("c1", Process{Pid: uint32(cmd.Process.Pid), StartTicks: 1, BootID: bootNow(t)}); err != nil {
		t.Fatal(err)
	}
	if f := <-got; f.Measured != k.Exact() || k.Exact() && f.Code != 42 {
		t.Fatalf("got %+v", f)
	}
}

func openFDs(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// shelf is the descriptor store of a service manager.
type shelf struct {
	mu  sync.Mutex
	fds map[string]int
}

func (s *shelf) Keep(id string, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fds[id], _ = unix.Dup(fd)
}

func (s *shelf) Drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.fds[id]; ok {
		_ = unix.Close(fd)
		delete(s.fds, id)
	}
}

// A pidfd does not say when its process ended, so no instant is made up for a process that ended
// while no berth ran.
func TestAnExitThatNobodySawHasNoInstant(t *testing.T) {
	s := &shelf{fds: map[string]int{}}
	cmd, end := process(t, "exit 42")
	p := Process{Pid: uint32(cmd.Process.Pid)}
	exact := false
	t.Run("an earlier berth", func(t *testing.T) {
		first := collectWith(t, s, nil)
		var err error
		if p, err = first.Watch("c1", p); err != nil {
			t.Fatal(err)
		}
		exact = first.Exact()
	})
	end()
	_ = cmd.Wait()
	next := collectWith(t, s, map[string]int{"c1": s.fds["c1"], "other": ownPidfd(t)})
	if _, err := next.Watch("c1", p); err != nil {
		t.Fatal(err)
	}
	f := next.last("c1")
	if f.Measured != exact || exact && f.Code != 42 || !f.At.IsZero() {
		t.Errorf("%+v", f)
	}
	s.Drop("c1")
	next.ForgetUnclaimed()
	if _, err := next.Watch("other", p); !errors.Is(err, ErrGone) {
		t.Errorf("a pidfd that was not claimed is still there: %v", err)
	}
}

func ownPidfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
