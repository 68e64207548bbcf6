// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"errors"
	"io"
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
