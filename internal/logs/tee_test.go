// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
)

// offer is what the pump does with output.
func (t *tees) offer(b []byte, stderr bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for one := range t.all {
		one.put(piece{b, stderr})
	}
}

func TestATeeReturnsWhatIsWrittenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Log{}
		tee, err := l.Attachment().Tee()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			l.tees.offer([]byte("prompt> "), false)
			l.tees.offer([]byte("oops"), true)
			l.tees.end()
		}()
		for _, want := range []piece{{[]byte("prompt> "), false}, {[]byte("oops"), true}} {
			b, stderr, lost, err := tee.Next(t.Context())
			if string(b) != string(want.b) || stderr != want.stderr || lost != 0 || err != nil {
				t.Errorf("got %q %v %d %v, want %q", b, stderr, lost, err, want.b)
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
		l.tees.offer(b, false)
	}
	if slow.size > teeSize {
		t.Errorf("it keeps %d bytes", slow.size)
	}
	b, _, lost, err := slow.Next(t.Context())
	if first := pieces - teeSize/size; err != nil || lost != int64(first)*size || int(b[0]) != first {
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
		if slow := asleep.lost + int64(asleep.size); slow != int64(len(want)) || asleep.size > teeSize {
			t.Errorf("the one that does not read has lost %d bytes and has %d", asleep.lost, asleep.size)
		}
		equal(t, "tee", got.Bytes(), []byte(want))
	})
}
