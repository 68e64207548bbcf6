// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// model is a machine that is simple enough to be seen to be right: one list of items per lane.
type model map[id]*modelLane

type modelLane struct {
	items    []int
	flying   bool
	deadline time.Time
	wake     time.Time
	fails    int
	overruns int
	poked    bool
}

func (l *modelLane) poke(now time.Time) {
	if l.flying {
		l.poked = true
	} else if l.wake.After(now) {
		l.wake, l.fails = now, 0
	}
}

// FuzzMachine plays operations to the machine and to the model. Each byte is one: two bits choose
// the lane, three are an argument, three the operation.
func FuzzMachine(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		b := make([]byte, 300)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, ops []byte) { against(t, ops) })
}

func against(t *testing.T, ops []byte) {
	const room = 3
	now := time.Unix(0, 0)
	m := NewMachine[id, int](Config{MaxQueue: room, MaxDeadline: 30 * time.Second})
	md := model{}
	for key := range 4 {
		md[id('a'+rune(key))] = &modelLane{}
	}
	fly, waiters := map[id]Attempt[id, int]{}, map[id]int{}
	for _, op := range ops {
		key, arg := id('a'+rune(op>>6)), int(op>>3)&7
		l := md[key]
		switch op & 7 {
		case 0, 1: // offer
			item := arg & 1
			rest := l.items
			if l.flying {
				rest = rest[1:]
			}
			want := true
			switch {
			case len(rest) > 0 && rest[len(rest)-1] == item:
			case len(rest) >= room:
				want = false
			default:
				l.items = append(l.items, item)
			}
			if got := m.Offer(now, key, item); got != want {
				t.Fatalf("offer %s: %v", key, got)
			}
		case 2: // somebody waits, or no longer
			if arg&1 == 1 {
				if waiters[key] > 0 {
					m.Unwait(key)
					waiters[key]--
				}
				break
			}
			m.Wait(now, key)
			waiters[key]++
			l.poke(now)
		case 3: // ready
			for {
				a, ok := m.Ready(now)
				if !ok {
					break
				}
				l := md[a.Key]
				if l.flying || len(l.items) == 0 || l.items[0] != a.Item || l.wake.After(now) {
					t.Fatalf("%s was returned with %d, the model is %+v", a.Key, a.Item, l)
				}
				span := min(10*time.Second<<l.overruns, 30*time.Second)
				if a.Deadline.Sub(now) != span {
					t.Fatalf("%s may take %s, not %s: %+v", a.Key, a.Deadline.Sub(now), span, l)
				}
				l.flying, l.deadline, fly[a.Key] = true, a.Deadline, a
			}
			for key, l := range md {
				if len(l.items) > 0 && !l.flying && !l.wake.After(now) {
					t.Fatalf("%s was forgotten: %+v", key, l)
				}
			}
		case 4: // done
			if a, ok := fly[key]; ok {
				delete(fly, key)
				if err := m.Done(now, a, Done()); err != nil {
					t.Fatal(err)
				}
				*l = modelLane{items: l.items[1:]}
			}
		case 5: // fail
			if a, ok := fly[key]; ok {
				delete(fly, key)
				wait, res := min(5*time.Minute, time.Second<<min(l.fails, 20)), Retry(errors.New("no"))
				if arg&1 == 1 {
					wait, res = min(wait, time.Second), RetryWithin(errors.New("no"), time.Second)
				} else if !now.Before(l.deadline) {
					l.overruns = min(l.overruns+1, 2)
				}
				if waiters[key] > 0 {
					wait = min(wait, time.Second)
				}
				if err := m.Done(now, a, res); err != nil {
					t.Fatal(err)
				}
				l.flying = false
				if l.poked {
					l.fails, l.poked, l.wake = 0, false, now
				} else {
					l.wake = now.Add(wait)
					l.fails++
				}
			}
		case 6: // poke
			m.Poke(now, key)
			l.poke(now)
		case 7: // advance
			now = now.Add(time.Duration(arg) * 1400 * time.Millisecond)
		}
		busy := 0
		for _, l := range md {
			if len(l.items) > 0 {
				busy++
			}
		}
		if m.Awaited(key) != (waiters[key] > 0) {
			t.Fatalf("%s is awaited: %v, the model has %d", key, m.Awaited(key), waiters[key])
		}
		if m.Len() != busy {
			t.Fatalf("%d lanes, the model has %d", m.Len(), busy)
		}
	}
}

func BenchmarkMachine(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprint(n, " lanes"), func(b *testing.B) {
			m := NewMachine[id, int](Config{})
			now := time.Unix(0, 0)
			ids := make([]id, n)
			for i := range ids {
				ids[i] = id(fmt.Sprint(i))
				if i > 0 { // all others back off
					m.Offer(now, ids[i], 1)
					a, _ := m.Ready(now)
					_ = m.Done(now, a, Retry(nil))
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				m.Offer(now, ids[0], 1)
				a, _ := m.Ready(now)
				_ = m.Done(now, a, Done())
			}
		})
	}
}
