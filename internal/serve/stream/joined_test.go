// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/heart/pod"
	"berth/internal/host/pidfd"
)

// fakeJoiner makes processes that are Go functions; a nil one makes none.
type fakeJoiner func(stdout, stderr *os.File, note func(pidfd.Process) error) (Member, error)

func (f fakeJoiner) Prepare(context.Context, pod.Target, []string) Joined {
	if f == nil {
		return nil
	}
	return f
}

func (f fakeJoiner) Start(_ context.Context, stdout, stderr *os.File, note func(pidfd.Process) error) (Member, error) {
	return f(stdout, stderr, note)
}

type fakeMember struct {
	once  sync.Once
	ended chan struct{}
	left  <-chan struct{}
	code  uint32
}

func newMember() *fakeMember {
	ended := make(chan struct{})
	return &fakeMember{ended: ended, left: ended}
}

func (m *fakeMember) Left() <-chan struct{} { return m.left }

func (m *fakeMember) end(code uint32) {
	m.once.Do(func() {
		m.code = code
		close(m.ended)
	})
}

func (m *fakeMember) Wait(ctx context.Context) (uint32, error) {
	select {
	case <-m.ended:
		return m.code, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (m *fakeMember) Kill() error {
	m.end(137)
	return nil
}

func TestExecSyncWithoutTheShim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var noted string
		w.service.cfg.Joiner = fakeJoiner(func(stdout, stderr *os.File, note func(pidfd.Process) error) (Member, error) {
			if err := note(pidfd.Process{Pid: 77, StartTicks: 5}); err != nil {
				return nil, err
			}
			files, _ := filepath.Glob(w.service.cfg.Dir + "/c1.*/process")
			b, err := os.ReadFile(files[0])
			if err != nil {
				t.Error(err)
			}
			noted = string(b)
			fmt.Fprint(stdout, "out")
			fmt.Fprint(stderr, "err")
			m := newMember()
			m.end(42)
			return m, nil
		})
		r, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0)
		if err != nil || string(r.Stdout) != "out" || string(r.Stderr) != "err" || r.Code != 42 {
			t.Errorf("got %v %v", r, err)
		}
		if noted != `{"pid":77,"startTicks":5}` {
			t.Errorf("the note is %s", noted)
		}
		if len(w.specs) != 0 {
			t.Error("the shim was asked")
		}
		w.expectNothingLeft()
	})
}

func TestWhatCannotBeMadeWithoutTheShimIsLeftToIt(t *testing.T) {
	for name, joiner := range map[string]fakeJoiner{
		"it is not planned": nil,
		"it fails": func(stdout, _ *os.File, note func(pidfd.Process) error) (Member, error) {
			fmt.Fprint(stdout, "of nobody")
			return nil, errors.Join(errors.New("no"), note(pidfd.Process{Pid: 77}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.service.cfg.Joiner = joiner
				w.program = func(p *fakeProcess) uint32 {
					fmt.Fprint(p.stdout, "out")
					p.closeOutput()
					return 3
				}
				r, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 0)
				if err != nil || string(r.Stdout) != "out" || r.Code != 3 || len(w.specs) != 1 {
					t.Errorf("got %v %v", r, err)
				}
				w.expectNothingLeft()
			})
		})
	}
}

func TestAProcessWithoutTheShimEndsWithItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := newMember()
		w.service.cfg.Joiner = fakeJoiner(func(_, _ *os.File, _ func(pidfd.Process) error) (Member, error) { return m, nil })
		_, err := w.service.ExecSync(t.Context(), "c1", []string{"ls"}, 3*time.Second)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if code, err := m.Wait(t.Context()); code != 137 || err != nil {
			t.Errorf("it ended with %d %v", code, err)
		}
		w.expectNothingLeft()
	})
}

// The note is all that the next berth has of a process that was made without the shim.
func TestTheNextBerthEndsWhatIsNoted(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	st, err := pidfd.ReadStat(uint32(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	boot, err := pidfd.BootID()
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{life: t.Context()}
	note := func(of pidfd.Process) *process {
		p := &process{s: s, dir: t.TempDir()}
		b, err := json.Marshal(of)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.dir, noteName), b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	it := pidfd.Process{Pid: uint32(cmd.Process.Pid), StartTicks: st.StartTicks, BootID: boot}
	for name, change := range map[string]func(p *pidfd.Process){
		"of another process": func(p *pidfd.Process) { p.StartTicks++ },
		"of another boot":    func(p *pidfd.Process) { p.BootID = "another" },
		"that is cut off":    func(p *pidfd.Process) { p.Pid = 0 },
	} {
		other := it
		change(&other)
		if noted, err := note(other).endNoted(t.Context()); !noted || err != nil {
			t.Errorf("a note %s: %v %v", name, noted, err)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("it was ended by a note that is not its own: %v", err)
	default:
	}
	if noted, err := note(it).endNoted(t.Context()); !noted || err != nil {
		t.Errorf("its note: %v %v", noted, err)
	}
	if err := <-ended; err == nil {
		t.Error("it was not killed")
	}
	if noted, err := note(it).endNoted(t.Context()); !noted || err != nil {
		t.Errorf("its note, again: %v %v", noted, err)
	}
	if noted, err := (&process{s: s, dir: t.TempDir()}).endNoted(t.Context()); noted || err != nil {
		t.Errorf("no note: %v %v", noted, err)
	}
}

// PROPERTIES 56: a command that leaves a child of its own parent behind has ended, and its call returns.
// Its place is its pod's until that child has ended, so that a probe a second does not leave as many
// processes of berth's.
func TestWhatACommandLeavesHasItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		left := make(chan struct{})
		w.service.cfg.Joiner = fakeJoiner(func(_, _ *os.File, _ func(pidfd.Process) error) (Member, error) {
			m := newMember()
			m.left = left
			m.end(0)
			return m, nil
		})
		share := w.service.commands.Usage().Pod
		for range share {
			if _, err := w.service.ExecSync(t.Context(), "c1", []string{"leave"}, 0); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"leave"}, 0); !errdefs.IsResourceExhausted(err) {
			t.Errorf("one more: got %v", err)
		}
		close(left)
		synctest.Wait()
		if _, err := w.service.ExecSync(t.Context(), "c1", []string{"leave"}, 0); err != nil {
			t.Error(err)
		}
		w.expectNothingLeft()
	})
}
