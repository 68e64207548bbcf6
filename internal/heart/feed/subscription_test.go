// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
)

func TestNextWaitsForAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{})
		s := f.Subscribe()
		got := make(chan *event, 1)
		go func() {
			ev, err := s.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- ev
		}()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("Next returned before there was an event")
		}
		want := publish(f, "p", "c", created)
		if ev := <-got; ev != want {
			t.Fatal(ev)
		}
	})
}

func TestNextEnds(t *testing.T) {
	gone := errors.New("the client is gone")
	tests := []struct {
		name string
		end  func(f *Feed, s *Subscription, cancel context.CancelCauseFunc)
		want error
	}{
		{"with its context", func(_ *Feed, _ *Subscription, cancel context.CancelCauseFunc) { cancel(gone) }, gone},
		{"with the subscription", func(_ *Feed, s *Subscription, _ context.CancelCauseFunc) { s.Close() }, ErrClosed},
		{"with the feed", func(f *Feed, _ *Subscription, _ context.CancelCauseFunc) { f.Close() }, ErrClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := New(Config{})
				s := f.Subscribe()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				got := make(chan error, 1)
				go func() {
					_, err := s.Next(ctx)
					got <- err
				}()
				synctest.Wait()
				tt.end(f, s, cancel)
				if err := <-got; !errors.Is(err, tt.want) {
					t.Fatal(err)
				}
				if _, err := s.Next(ctx); !errors.Is(err, tt.want) {
					t.Fatal("called again:", err)
				}
			})
		})
	}
}

func TestNextReturnsNothingToAClientThatIsGone(t *testing.T) {
	f := New(Config{})
	s := f.Subscribe()
	publish(f, "p", "c", stopped)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ev, err := s.Next(ctx); ev != nil || !errors.Is(err, context.Canceled) {
		t.Fatal(ev, err)
	}
	s.Close()
	equal(t, drain(t, f.Subscribe()), "c:X")
}

func TestAClosedFeedIsEmptiedAndThenClosed(t *testing.T) {
	f := New(Config{})
	s := f.Subscribe()
	want := publish(f, "p", "c", stopped)
	f.Close()
	f.Close()
	publish(f, "p", "c", deleted)
	if ev, err := s.Next(t.Context()); ev != want || err != nil {
		t.Fatal(ev, err)
	}
	for _, s := range []*Subscription{s, f.Subscribe()} {
		if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) || !errdefs.IsUnavailable(err) {
			t.Fatal(err)
		}
		s.Close()
	}
	if st := f.Stats(); st != (Stats{Published: 1}) {
		t.Fatalf("%+v", st)
	}
}
