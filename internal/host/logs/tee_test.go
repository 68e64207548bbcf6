// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

func TestATeeReturnsWhatIsWrittenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Log{}
		tee, err := l.Attachment().Tee()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			l.tees.put([]byte("prompt> "), false)
			l.tees.put([]byte("oops"), true)
			l.tees.end()
		}()
		for i, want := range []string{"prompt> ", "oops"} {
			b, stderr, lost, err := tee.Next(t.Context())
			if string(b) != want || stderr != (i == 1) || lost != 0 || err != nil {
				t.Errorf("got %q %v %d %v, want %q", b, stderr, lost, err, want)
			}
		}
		if _, _, _, err := tee.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
		again, err := l.Attachment().Tee()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := again.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("the output has ended: got %v", err)
		}
	})
}

// PROPERTIES 12 and 20: a client that does not read holds nobody up, and costs a bounded amount.
func TestATeeThatIsNotReadLosesItsOldestOutput(t *testing.T) {
	l := &Log{}
	slow, err := l.Attachment().Tee()
	if err != nil {
		t.Fatal(err)
	}
	const pieces, size = 100, 64 << 10
	for i := range pieces {
		b := make([]byte, size)
		b[0] = byte(i)
		l.tees.put(b, false)
	}
	if n := len(slow.ring.buf); n > ringSize {
		t.Errorf("it keeps %d bytes", n)
	}
	b, _, lost, err := slow.Next(t.Context())
	if first := pieces - ringSize/size; err != nil || lost != int64(first)*size || int(b[0]) != first {
		t.Errorf("got piece %d after a loss of %d, %v", b[0], lost, err)
	}
	slow.Close()
	slow.Close()
	if n := l.tees.count.Load(); n != 0 {
		t.Errorf("%d tees are left", n)
	}
}

func TestTeesAreBounded(t *testing.T) {
	l := &Log{}
	for range maxTees {
		if _, err := l.Attachment().Tee(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Attachment().Tee(); !errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v", err)
	}
}

func TestATeeWaitsWithinItsContext(t *testing.T) {
	l := &Log{}
	tee, err := l.Attachment().Tee()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := tee.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A client sees a prompt, which has no end of line, before it is a line in the log. One client
// that does not read changes nothing for another one or for the log.
func TestATeeReadsAlongBehindTheSpool(t *testing.T) {
	ways(t, func(t *testing.T, o Options) {
		c := start(t, o, host{})
		tee, err := c.log.Attachment().Tee()
		if err != nil {
			t.Fatal(err)
		}
		defer tee.Close()
		asleep, err := c.log.Attachment().Tee()
		if err != nil {
			t.Fatal(err)
		}
		defer asleep.Close()
		c.write("prompt> ")
		if b, _, _, err := tee.Next(t.Context()); string(b) != "prompt> " || err != nil {
			t.Errorf("got %q %v", b, err)
		}
		var got bytes.Buffer
		got.WriteString("prompt> ")
		var seen atomic.Int64 // after the prompt
		read := make(chan struct{})
		go func() {
			defer close(read)
			for {
				b, _, lost, err := tee.Next(t.Context())
				if err != nil || lost > 0 {
					if !errors.Is(err, io.EOF) {
						t.Errorf("%d bytes lost, %v", lost, err)
					}
					return
				}
				got.Write(b)
				seen.Add(int64(len(b)))
			}
		}()
		want := "prompt> "
		for i := range 64 { // 4 MiB
			text := strings.Repeat(string(rune('a'+i%26)), 64<<10-1) + "\n"
			c.write(text)
			want += text
			until(t, "the reader has kept up", func() bool { return seen.Load() == int64(len(want)-len("prompt> ")) })
		}
		c.end()
		<-read
		c.expect(want)
		late, _, lost, err := asleep.Next(t.Context())
		if err != nil || lost != int64(len(want)-ringSize) || !strings.HasPrefix(want[lost:], string(late)) {
			t.Errorf("the one that does not read has lost %d bytes, and got %q %v then", lost, late[:min(len(late), 10)], err)
		}
		equal(t, "tee", got.Bytes(), []byte(want))
	})
}

// PROPERTIES 38: attaches that were not read kept each byte as a piece of its own: 64 of them held
// 557 MiB, though none kept more than 1 MiB of output. What all tees of a container cost is
// bounded, whatever the shape of the output.
func TestTeesThatAreNotReadCostABoundedAmount(t *testing.T) {
	l := &Log{}
	var tees []*Tee
	for range maxTees {
		tee, err := l.Attachment().Tee()
		if err != nil {
			t.Fatal(err)
		}
		tees = append(tees, tee)
	}
	before := liveHeap()
	for i := range 100_000 { // one byte of either stream in turn is the worst of all shapes
		l.tees.put([]byte{byte(i)}, i%2 == 1)
	}
	if grown := liveHeap() - before; grown > 2*ringSize {
		t.Errorf("%d tees that are not read hold %d KiB", len(tees), grown>>10)
	}
	runtime.KeepAlive(tees)
	runtime.KeepAlive(l)
}

// liveHeap is how many bytes are in use.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What a ring returns is what was put into it, whatever the shape, for readers that are fast or
// slow, and what they lost is the oldest.
func TestARingReturnsWhatWasPut(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	random := rand.New(rand.NewSource(seed))
	for range 10 {
		var all [2][]byte // by stream
		var order []bool
		r := &ring{}
		var at int64
		check := func() {
			b, stderr, lost := r.next(&at, r.to)
			from := at - int64(len(b)) - lost
			skip, index := 0, 0
			if stderr {
				index = 1
			}
			for _, is := range order[:from+lost] {
				if is == stderr {
					skip++
				}
			}
			for _, is := range order[from+lost : at] {
				if is != stderr {
					t.Fatal("a piece has the output of two streams")
				}
			}
			if want := all[index][skip:][:len(b)]; !bytes.Equal(b, want) {
				t.Fatalf("got %d other bytes at %d", len(b), from)
			}
		}
		for range 1 + random.Intn(40) {
			b := make([]byte, random.Intn(1<<uint(random.Intn(19)))+1)
			random.Read(b)
			stderr := random.Intn(2) == 1
			index := 0
			if stderr {
				index = 1
			}
			all[index] = append(all[index], b...)
			for range b {
				order = append(order, stderr)
			}
			r.put(b, stderr)
			for range random.Intn(4) {
				if at < r.to {
					check()
				}
			}
		}
		for at < r.to {
			check()
		}
		if r.to != int64(len(order)) || r.to-r.from > ringSize || len(r.buf) > ringSize {
			t.Fatalf("%d bytes were put; the ring ends at %d, begins at %d, and has %d", len(order), r.to, r.from, len(r.buf))
		}
	}
}
