// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seed is FEED_SEED, or a new one; it is printed either way.
func seed(t testing.TB) uint64 {
	n := rand.Uint64()
	if s := os.Getenv("FEED_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FEED_SEED=%d", n)
	return n
}

// client reads one subscription after the other, over a network that loses as much as it may: when
// a stream breaks, everything is lost that was handed out within Keep before the client last had
// nothing to take. Only what was replayed, having been handed to someone before the client
// subscribed, is not lost a second time.
type client struct {
	s     *Subscription
	keep  time.Duration
	seen  map[*event]bool   // what had been handed to anyone when it subscribed
	waits bool              // in Next
	level time.Time         // when there last was nothing to take
	wire  []sent            // handed out, possibly not arrived
	has   map[string]*event // arrived: the newest of each container
	since int64             // the feed's clock when it subscribed
	away  time.Duration     // for how long, while others were subscribed
}

type sent struct {
	ev    *event
	at    time.Time
	again bool
}

func (c *client) connect(f *Feed, handed map[*event]bool) {
	c.s, c.level, c.waits = f.Subscribe(), time.Time{}, false
	c.seen, c.since = maps.Clone(handed), f.clock
}

// stir ends a wait.
func (c *client) stir() {
	if c.waits {
		c.level, c.waits = time.Now(), false
	}
}

// read takes up to n events, at least one. When there are no more it waits for one, or does
// something else if busy.
func (c *client) read(t testing.TB, handed map[*event]bool, n int, busy bool) {
	c.stir()
	for range n {
		ev, err := c.s.take()
		if err != nil {
			t.Fatal(err)
		}
		if ev == nil {
			c.waits = true
			if busy {
				c.s.giveUp()
				c.stir()
			}
			return
		}
		if isDeletion(ev) && ev.CreatedAt <= c.since {
			t.Fatalf("the DELETED of %s, of %d, was replayed to a subscriber of %d", ev.ContainerId, ev.CreatedAt, c.since)
		}
		c.wire = append(c.wire, sent{ev, time.Now(), c.seen[ev]})
		handed[ev] = true
	}
}

// arrive keeps what was handed out before an instant.
func (c *client) arrive(t testing.TB, before time.Time) {
	rising := map[string]int64{}
	for _, s := range c.wire {
		if pod := podOf(s.ev); s.ev.CreatedAt <= rising[pod] {
			t.Fatalf("pod %s: stamp %d after %d", pod, s.ev.CreatedAt, rising[pod])
		} else {
			rising[pod] = s.ev.CreatedAt
		}
		if old := c.has[s.ev.ContainerId]; (s.again || s.at.Before(before)) && (old == nil || old.CreatedAt < s.ev.CreatedAt) {
			c.has[s.ev.ContainerId] = s.ev
		}
	}
	c.wire = nil
}

func (c *client) disconnect(t testing.TB) {
	c.stir()
	c.arrive(t, c.level.Add(-c.keep))
	c.s.Close()
	c.s, c.away = nil, 0
}

// PROPERTIES 8 and 9: whatever subscribers do, and whoever else is there, a client that has read
// everything has the newest event of each container that was not deleted, and of those that were
// deleted since it subscribed. No DELETED is replayed, and stamps rise per pod on every stream.
func TestEveryClientEndsWithTheNewestOfEveryContainer(t *testing.T) {
	n := seed(t)
	for round := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(n, round))
			keep := time.Duration(1+r.IntN(100)) * time.Second
			f := New(Config{Queue: 1 + r.IntN(10), Backlog: 30, Keep: keep})
			handed := map[*event]bool{}
			clients := make([]*client, 1+r.IntN(4))
			for i := range clients {
				clients[i] = &client{keep: keep, has: map[string]*event{}}
				clients[i].connect(f, handed)
			}
			published := map[string]*event{}
			subscribed := func() (k int) {
				for _, c := range clients {
					if c.s != nil {
						k++
					}
				}
				return k
			}
			for range 300 {
				switch c := clients[r.IntN(len(clients))]; r.IntN(12) {
				case 0, 1, 2, 3, 4:
					i := r.IntN(30)
					id := fmt.Sprint("c", i)
					what := created
					if old := published[id]; old != nil {
						what = min(old.ContainerEventType+1, deleted)
					}
					published[id] = publish(f, fmt.Sprint("p", i%3), id, what)
					for _, c := range clients {
						c.stir()
					}
				case 5, 6, 7:
					if c.s != nil {
						c.read(t, handed, 1+r.IntN(19), r.IntN(2) == 0)
					}
				case 8:
					if c.s != nil {
						c.disconnect(t)
					}
				case 9:
					if c.s == nil {
						c.connect(f, handed)
					}
				default:
					d := time.Duration(r.IntN(30)) * time.Second
					for _, c := range clients {
						if c.s == nil && subscribed() > 0 {
							// Nobody stays away for longer than Keep while others are subscribed.
							if c.away += d; c.away >= keep {
								c.connect(f, handed)
							}
						}
					}
					time.Sleep(d)
				}
				check(t, f)
			}
			for i, c := range clients {
				if c.s == nil {
					c.connect(f, handed)
				}
				c.read(t, handed, 1000, true)
				c.arrive(t, time.Now().Add(time.Hour))
				for id, want := range published {
					if isDeletion(want) && want.CreatedAt <= c.since {
						continue // the client's own relist shows that it is gone
					}
					if c.has[id] != want {
						t.Fatalf("round %d, client %d: %s is %v, published %v", round, i, id, c.has[id], want)
					}
				}
			}
			if st := f.Stats(); st.Dropped != 0 || st.Restamped != 0 {
				t.Fatalf("round %d: %+v", round, st)
			}
		})
	}
}

// check walks the structures of a feed.
func check(t testing.TB, f *Feed) {
	t.Helper()
	most := max(f.cfg.Queue, f.cfg.Backlog)
	checkLatest(t, f.memory, f.cfg.Backlog)
	if f.memory.deleted.head != nil {
		t.Fatal("a DELETED is remembered")
	}
	if len(f.debts) > grain+2 {
		t.Fatalf("%d debts", len(f.debts))
	}
	for s := range f.subs {
		if s.queue.collapsed != nil {
			checkLatest(t, s.queue.collapsed, most)
		} else if s.queue.len() > f.cfg.Queue {
			t.Fatalf("%d events in a complete queue of %d", s.queue.len(), f.cfg.Queue)
		}
	}
}

func checkLatest(t testing.TB, l *latest, most int) {
	t.Helper()
	var n int
	var seq uint64
	for e := range l.all() {
		if e.seq <= seq || l.get(e.ev.ContainerId) != e {
			t.Fatalf("entry %d of %s is out of order or not indexed", e.seq, e.ev.ContainerId)
		}
		seq = e.seq
		n++
	}
	if n != l.len() || n > most {
		t.Fatalf("%d entries, %d indexed, at most %d allowed", n, l.len(), most)
	}
}

// TestEverythingAtOnce is for the race detector: everyone does everything at once, and it ends.
func TestEverythingAtOnce(t *testing.T) {
	f := New(Config{Queue: 8, Backlog: 16, Keep: time.Nanosecond})
	var publishers, readers sync.WaitGroup
	for p := range 4 {
		publishers.Go(func() {
			pod := fmt.Sprint("p", p)
			for i := range 500 {
				for _, what := range life {
					publish(f, pod, fmt.Sprintf("%s-%d", pod, i), what)
				}
				f.Stats()
				f.Instant(time.Now())
			}
			f.Forget(pod)
		})
		readers.Go(func() {
			for {
				s := f.Subscribe()
				last := map[string]int64{}
				for range 50 {
					ev, err := s.Next(t.Context())
					if err != nil {
						s.Close()
						return
					}
					if pod := podOf(ev); ev.CreatedAt <= last[pod] {
						t.Errorf("stamp %d after %d", ev.CreatedAt, last[pod])
					} else {
						last[pod] = ev.CreatedAt
					}
				}
				s.Close()
			}
		})
	}
	publishers.Wait()
	f.Close()
	readers.Wait()
}

var podStatus = []*runtimeapi.PodSandboxStatus{{Id: "p0"}, {Id: "p1"}}

// FuzzFeed takes a step for each byte of a script, and checks the structures after it.
func FuzzFeed(f *testing.F) {
	f.Add([]byte{0, 0}, uint8(1), uint8(1))
	f.Add([]byte{1, 9, 17, 25, 2, 2, 2, 3, 1, 2, 2, 4, 1}, uint8(2), uint8(3))
	f.Add([]byte{0, 8, 16, 24, 32, 40, 48, 56, 1, 9, 17, 3, 2, 0, 4, 5, 6, 7}, uint8(3), uint8(2))
	f.Fuzz(func(t *testing.T, script []byte, queue, backlog uint8) {
		fd := New(Config{Queue: int(queue % 8), Backlog: int(backlog % 8), Keep: time.Nanosecond})
		type reader struct {
			s        *Subscription
			received []*event
		}
		var readers []*reader
		last := map[string]*event{}
		for i, b := range script {
			arg := int(b >> 3)
			pick := func() *reader {
				if len(readers) == 0 {
					return nil
				}
				return readers[arg%len(readers)]
			}
			switch b & 7 {
			case 0, 1, 2: // an event with any stamp, good or bad
				ev := &event{
					ContainerId: fmt.Sprint("c", arg), ContainerEventType: life[int(b&7)+i%2],
					CreatedAt: int64(i*arg) % 50,
				}
				if i%3 > 0 {
					ev.PodSandboxStatus = podStatus[i%3-1]
				}
				fd.Publish(ev)
				last[ev.ContainerId] = ev
			case 3:
				if len(readers) < 5 {
					readers = append(readers, &reader{s: fd.Subscribe()})
				}
			case 4, 5:
				if r := pick(); r != nil {
					if ev, err := r.s.take(); err != nil {
						t.Fatal(err)
					} else if ev != nil {
						r.received = append(r.received, ev)
					}
				}
			case 6:
				if r := pick(); r != nil {
					checkRising(t, r.received)
					r.s.Close()
					readers[arg%len(readers)] = readers[len(readers)-1]
					readers = readers[:len(readers)-1]
				}
			case 7:
				fd.Stamp("p0", time.Unix(0, int64(arg)))
			}
			check(t, fd)
		}
		whole := fd.Stats().Dropped == 0
		for _, r := range readers {
			rest := drain(t, r.s)
			r.received = append(r.received, rest...)
			checkRising(t, r.received)
			for id, ev := range newest(r.received) {
				if whole && last[id] != ev {
					t.Fatalf("%s ends with %v, published %v", id, ev, last[id])
				}
			}
		}
	})
}
