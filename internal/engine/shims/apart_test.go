// SPDX-License-Identifier: Apache-2.0

package shims

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// unit is a control group of berth's unit, and the one beside it, without a kernel.
type unit struct {
	mu         sync.Mutex
	own, apart []int
	err        error
	moved      func(pid int) // called after a move
	removed    bool
}

func (u *unit) Left() (pids []int, err error) {
	u.change(func() { pids = slices.Clone(u.own) })
	return pids, nil
}

func (u *unit) change(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
}

func (u *unit) Move(pid int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err != nil {
		return u.err
	}
	u.own = slices.DeleteFunc(u.own, func(p int) bool { return p == pid })
	u.apart = append(u.apart, pid)
	if u.moved != nil {
		u.moved(pid)
	}
	return nil
}

func (u *unit) Remove() { u.change(func() { u.removed = true }) }

// PROPERTIES 76: `systemctl kill -s KILL berth` killed the shim of each pod, because shims stayed
// in the control group of berth's unit, and containerd killed what ran in the pods. Shims and
// loggers leave the group, also those that an earlier berth has left there, or that appear
// unannounced. Nothing else does: another program of berth's ends with it, and a process of another
// user is not berth's to move.
func TestShimsAndLoggersLeaveTheUnit(t *testing.T) {
	const host = "mnt:[1]"
	program := entry{exe: "/usr/bin/containerd-shim-runc-v2", mounts: host, args: []string{"containerd-shim-runc-v2", "-id", thisID}}
	logger := entry{exe: "/usr/libexec/berth/berth-logger", mounts: host, args: []string{"berth-logger"}}
	procs := proc(t, map[string]entry{
		"self": {exe: "/usr/bin/berth", mounts: host, args: []string{"berth"}},
		"100":  program,
		"101":  logger,
		"102":  program, // it appears later
		"103":  logger,
		"104":  logger,
		"200":  {exe: "/usr/bin/iptables", mounts: host, args: []string{"iptables"}},
		"201":  {exe: "/tmp/berth-logger", mounts: host, args: []string{"berth-logger"}},
	})
	try(t, os.Chown(procs+"/201", 65534, 65534))
	synctest.Test(t, func(t *testing.T) {
		u := &unit{own: []int{100, 101, 200, 201, 999}, err: errors.New("busy")}
		s := New(Config{Apart: u, Logger: slog.New(slog.DiscardHandler)})
		s.processes.proc = procs
		running := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		go func() { defer close(running); _ = s.RunApart(ctx) }()
		expect := func(pids ...int) {
			t.Helper()
			synctest.Wait()
			u.mu.Lock()
			defer u.mu.Unlock()
			if slices.Sort(u.apart); !slices.Equal(u.apart, pids) {
				t.Errorf("%v have left the group, not %v", u.apart, pids)
			}
		}
		expect() // and berth goes on
		u.change(func() {
			u.err, u.own = nil, append(u.own, 102)
			u.moved = func(pid int) {
				if pid == 102 { // it started a logger while it was moved
					u.own = append(u.own, 103)
				}
			}
		})
		s.put(thisID, shim{})
		expect(100, 101, 102, 103)
		u.change(func() { u.own = append(u.own, 104) }) // in the place of another, of which nothing tells
		time.Sleep(lookInterval)
		expect(100, 101, 102, 103, 104)
		if !slices.Equal(u.own, []int{200, 201, 999}) || u.removed {
			t.Errorf("left in the group: %v; removed: %v", u.own, u.removed)
		}
		stop()
		<-running
		if !u.removed {
			t.Error("the other group was not removed")
		}
	})
}

// PROPERTIES 15, 76: the shims died while berth was away, and containerd killed what was left of
// their pods when it came back: "SIGKILL ended it. berth did not send it and nobody asked for a
// stop: it came from within the pod." A shim that is not known is looked for.
func TestAShimThatDiedWhileBerthWasAwayIsNamed(t *testing.T) {
	const host = "mnt:[1]"
	shim := entry{exe: "/usr/bin/containerd-shim-runc-v2", mounts: host, args: []string{"containerd-shim-runc-v2", "-id", thisID}}
	cleanup := entry{exe: shim.exe, mounts: host, args: []string{"containerd-shim-runc-v2", "-id", otherID, "delete"}}
	procs := proc(t, map[string]entry{
		"self": {exe: "/usr/bin/berth", mounts: host, args: []string{"berth"}},
		"100":  shim,
		"101":  cleanup,
	})
	for _, inside := range []bool{true, false} {
		s := New(Config{Inside: inside, Logger: slog.New(slog.DiscardHandler)})
		s.processes.proc = procs
		if s.Killed(t.Context(), thisID) {
			t.Error("a shim that is there has died")
		}
		if got := s.Killed(t.Context(), otherID); got != inside {
			t.Errorf("containerd inside: %v; a shim that is not there has died: %v", inside, got)
		}
		s.Rejoin("shared", "group", "kind")
		if s.Killed(t.Context(), "shared") {
			t.Error("the death of a shared shim has ended a container")
		}
		s.processes.proc = t.TempDir()
		if s.Killed(t.Context(), otherID) {
			t.Error("a search that failed has found a shim dead")
		}
		s.Wait()
	}
}
