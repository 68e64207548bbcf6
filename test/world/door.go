// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

var errInject = errors.New("this was made to fail")

// errLost is the error of a call whose answer is lost on its way.
var errLost = fmt.Errorf("the connection broke: %w", errdefs.ErrUnavailable)

// rule makes calls of an operation fail or stall.
type rule struct {
	op     string
	id     string // "" matches all
	times  int    // how often still
	stall  time.Duration
	hold   chan struct{} // calls wait until it is closed
	err    error
	anyway bool // the effect takes place although the call fails
	first  bool // the effect takes place before the call is held
}

// always is for rules that someone lifts.
const always = math.MaxInt

// do is the door through which each effect of a life passes to the world. The effect waits for its
// turn, is counted, and the berth is killed, or the call stalled or failed, if that was asked for.
// effect runs with the world locked.
func (w *World) do(ctx context.Context, l *Life, op, id string, effect func() error) error {
	w.turns.take(op + " " + id)
	return w.pass(ctx, l, op, id, effect)
}

// pass is do for an effect that has had its turn.
func (w *World) pass(ctx context.Context, l *Life, op, id string, effect func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.Dead() {
		return ErrKilled
	}
	w.steps++
	last := w.steps == w.killAt
	w.did = append(w.did, op+" "+id)
	w.note(op, id)
	if last {
		w.killAt = -1
	}
	if last && !w.killAfter {
		l.killLocked()
		return ErrKilled
	}
	if r := w.match(op, id); r != nil {
		if op == "commit" {
			w.commitsFail()
		}
		if r.first {
			if err := effect(); err != nil {
				return err
			}
			effect = func() error { return nil }
		}
		if err := w.stallLocked(ctx, l, op, id, r); err != nil {
			if r.anyway {
				w.later(effect)
			}
			return err
		}
		if r.err != nil {
			if r.anyway {
				_ = effect()
			}
			return fmt.Errorf("%s %s: %w", op, id, r.err)
		}
	}
	err := effect()
	if last && w.killAt < 0 {
		l.killLocked()
		return ErrKilled
	}
	return err
}

// read is the door for calls that have no effect.
func (w *World) read(ctx context.Context, l *Life, op, id string, look func() error) error {
	w.turns.take(op + " " + id)
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.Dead() {
		return ErrKilled
	}
	w.did = append(w.did, op+" "+id)
	if r := w.match(op, id); r != nil {
		w.unanswered(op, id)
		if p := w.inits[strings.TrimPrefix(id, CgroupOf(""))]; p != nil && p.OOM > 0 && op == "oom" {
			p.Uncounted = true
		}
		if r.first {
			if err := look(); err != nil {
				return err
			}
			look = func() error { return nil }
		}
		if err := w.stallLocked(ctx, l, op, id, r); err != nil {
			return err
		}
		if r.err != nil {
			return fmt.Errorf("%s %s: %w", op, id, r.err)
		}
	}
	err := look()
	if err != nil {
		w.unanswered(op, id)
	}
	return err
}

// unanswered notes that a question about a task was not answered, or not in time.
func (w *World) unanswered(op, id string) {
	if p := w.inits[id]; p != nil && (op == "get-task" || op == "wait-task") {
		p.Unanswered = true
	}
}

// later carries out a call that its caller has given up.
func (w *World) later(effect func() error) {
	time.AfterFunc(time.Minute, func() {
		w.turns.take("what was given up")
		w.mu.Lock()
		defer w.mu.Unlock()
		w.note("*** what was given up is carried out", "")
		_ = effect()
	})
}

func (w *World) match(op, id string) *rule {
	for _, r := range w.rules {
		if r.times > 0 && r.op == op && (r.id == "" || r.id == id) {
			r.times--
			return r
		}
	}
	return nil
}

// stallLocked waits as a rule has it, with the world unlocked.
func (w *World) stallLocked(ctx context.Context, l *Life, op, id string, r *rule) error {
	if r.stall == 0 && r.hold == nil {
		return nil
	}
	if op == "commit" {
		w.disk.stalled++
		defer func() {
			w.disk.stalled--
			w.commitsFail()
		}()
	}
	var healed <-chan struct{}
	if r.stall > 0 {
		healed = w.healed
	}
	w.mu.Unlock()
	defer w.mu.Lock()
	var over <-chan time.Time
	if r.stall > 0 {
		t := time.NewTimer(r.stall)
		defer t.Stop()
		over = t.C
	}
	var err error
	select {
	case <-over:
	case <-healed:
	case <-r.hold:
	case <-ctx.Done():
		err = ctx.Err()
	case <-l.gone:
		err = ErrKilled
	}
	w.turns.take(strings.Join([]string{"stalled", op, id}, " "))
	return err
}

// Fail makes the next times calls of op on id fail; "" is any ID.
func (w *World) Fail(op, id string, times int) {
	w.add(&rule{op: op, id: id, times: times, err: errInject})
}

// InVain are errors of a question that prove nothing about its subject.
var InVain = []error{
	unix.EMFILE,
	unix.ENFILE,
	unix.ENOMEM,
	unix.ENOENT,
	unix.EINVAL,
	unix.EIO,
	context.DeadlineExceeded,
}

// AskInVain makes the next times calls of op on id fail with why, one of [InVain]; "" is any ID.
// Beside the calls that pass a door there is "look", whether a process has ended that is watched,
// and "search", for the shim of a task that containerd does not know.
func (w *World) AskInVain(op, id string, times int, why error) {
	w.add(&rule{op: op, id: id, times: times, err: why})
}

// asked is the result of a question that passes no door, and waits for no turn: the error of a
// rule.
func (w *World) asked(op, id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.match(op, id); r != nil {
		return fmt.Errorf("%s %s: %w", op, id, r.err)
	}
	return nil
}

// LoseAnswer makes the next call of op on id take effect, and its answer be lost: the caller gets
// ErrUnavailable. "" is any ID.
func (w *World) LoseAnswer(op, id string) {
	w.add(&rule{op: op, id: id, times: 1, err: errLost, first: true})
}

// RefuseInPart makes the next call of op on id take effect, and fail with err all the same.
func (w *World) RefuseInPart(op, id string, err error) {
	w.add(&rule{op: op, id: id, times: 1, err: err, anyway: true})
}

// Refuse makes calls of op on id fail with err until lift is called; "" is any ID.
func (w *World) Refuse(op, id string, err error) (lift func()) {
	return w.lasting(&rule{op: op, id: id, err: err})
}

// RefuseOnce makes the next call of op on id wait until release is called, and then fail with err.
func (w *World) RefuseOnce(op, id string, err error) (release func()) {
	hold := make(chan struct{})
	w.add(&rule{op: op, id: id, times: 1, hold: hold, err: err})
	return sync.OnceFunc(func() { close(hold) })
}

// Hold makes calls of op on id wait until release is called; "" is any ID.
func (w *World) Hold(op, id string) (release func()) {
	return w.lasting(&rule{op: op, id: id, hold: make(chan struct{})})
}

// HoldAnswer makes calls of op on id take effect, and return when release is called.
func (w *World) HoldAnswer(op, id string) (release func()) {
	return w.lasting(&rule{op: op, id: id, hold: make(chan struct{}), first: true})
}

func (w *World) lasting(r *rule) (lift func()) {
	r.times = always
	w.add(r)
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.rules = slices.DeleteFunc(w.rules, func(o *rule) bool { return o == r })
		if r.hold != nil {
			close(r.hold)
		}
	})
}

// Stall makes the next times calls of op on id take d longer.
func (w *World) Stall(op, id string, times int, d time.Duration) {
	w.add(&rule{op: op, id: id, times: times, stall: d})
}

// Abandon makes the next call of op on id take d. Should its caller give up before, it is carried
// out a minute after that.
func (w *World) Abandon(op, id string, d time.Duration) {
	w.add(&rule{op: op, id: id, times: 1, stall: d, anyway: true})
}

// Lose makes the next call of op on id take effect and return an error all the same.
func (w *World) Lose(op, id string) {
	w.RefuseInPart(op, id, errInject)
}

func (w *World) add(r *rule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = append(w.rules, r)
}

// Swallow makes the next exit events of shims, and the next notices of the kernel, be lost.
func (w *World) Swallow(events, notices int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lostEvents += events
	w.lostNotices += notices
}

// Heal ends everything that was made to fail, stall or be lost, including present stalls, and makes
// room on the disk. Held calls go on being held until they are released. Heal does not start
// programs that are down.
func (w *World) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commitsFail()
	w.rules, w.disk.full, w.lostEvents, w.lostNotices = nil, false, 0, 0
	close(w.healed)
	w.healed = make(chan struct{})
}
