// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// fakeStdio is that of a container which repeats its stdin.
type fakeStdio struct {
	terminal bool
	once     bool
	output   chan string
	stdin    *io.PipeReader
	in       *io.PipeWriter
	tees     int
	ended    atomic.Bool // the stdin
	mu       sync.Mutex
}

func newStdio(w *world) *fakeStdio {
	s := &fakeStdio{output: make(chan string, 10)}
	s.stdin, s.in = io.Pipe()
	w.service.cfg.Stdio = func(string) (Stdio, error) { return s, nil }
	w.processes[Key{Container: "c1"}] = &fakeProcess{} // its own process
	return s
}

func (s *fakeStdio) Tee() (Tee, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tees++
	return &fakeTee{s: s, closed: make(chan struct{})}, nil
}

func (s *fakeStdio) OpenStdin() (io.WriteCloser, error) { return s.in, nil }

// CloseStdin notes that it was called.
func (s *fakeStdio) CloseStdin() bool {
	s.ended.Store(true)
	return s.once
}
func (s *fakeStdio) Terminal() bool { return s.terminal }

type fakeTee struct {
	s      *fakeStdio
	once   sync.Once
	closed chan struct{}
}

func (t *fakeTee) Next(ctx context.Context) ([]byte, bool, int64, error) {
	select {
	case o := <-t.s.output:
		text, stderr := strings.CutPrefix(o, "stderr:")
		return []byte(text), stderr, 0, nil
	default:
	}
	select {
	case o := <-t.s.output:
		text, stderr := strings.CutPrefix(o, "stderr:")
		return []byte(text), stderr, 0, nil
	case <-t.closed:
		return nil, false, 0, io.EOF
	case <-ctx.Done():
		return nil, false, 0, ctx.Err()
	}
}

func (t *fakeTee) Close() {
	t.once.Do(func() {
		close(t.closed)
		t.s.mu.Lock()
		t.s.tees--
		t.s.mu.Unlock()
	})
}

// writeCloser is a client's stream; it fails when it is gone.
type writeCloser struct {
	bytes.Buffer
	gone bool
}

func (w *writeCloser) Write(b []byte) (int, error) {
	if w.gone {
		return 0, errors.New("broken pipe")
	}
	return w.Buffer.Write(b)
}

func (w *writeCloser) Close() error { return nil }

func TestAttachPassesOutputOnUntilTheContainerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := newStdio(w)
		s.output <- "out"
		s.output <- "stderr:err"
		s.output <- "last"
		close(w.ended)
		var out, errs writeCloser
		if err := w.service.Attach(t.Context(), "c1", nil, &out, &errs, false, nil); err != nil {
			t.Error(err)
		}
		if out.String() != "outlast" || errs.String() != "err" || s.tees != 0 {
			t.Errorf("got %q and %q, and %d tees are left", out.String(), errs.String(), s.tees)
		}
	})
}

func TestAttachEndsWithItsClient(t *testing.T) {
	for name, gone := range map[string]bool{"whose connection ends": false, "that takes nothing any more": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				s := newStdio(w)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- w.service.Attach(ctx, "c1", nil, &writeCloser{gone: gone}, nil, false, nil) }()
				synctest.Wait()
				if gone {
					s.output <- "out"
				} else {
					cancel()
				}
				if err := <-done; err == nil {
					t.Error("there is no error")
				}
				cancel()
				if s.tees != 0 || w.service.mu.all != 0 {
					t.Errorf("%d tees and %d clients are left", s.tees, w.service.mu.all)
				}
			})
		})
	}
}

func TestAttachFollowsTheTerminalAndPassesTheInputOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := newStdio(w)
		s.terminal = true
		resize := make(chan remotecommand.TerminalSize)
		done := make(chan error)
		var got []byte
		go func() { got, _ = io.ReadAll(s.stdin) }()
		go func() {
			done <- w.service.Attach(t.Context(), "c1", strings.NewReader("typed"), nil, nil, true, resize)
		}()
		resize <- remotecommand.TerminalSize{Width: 80, Height: 25}
		resize <- remotecommand.TerminalSize{} // is not a size
		resize <- remotecommand.TerminalSize{Width: 81, Height: 26}
		synctest.Wait()
		close(w.ended)
		if err := <-done; err != nil {
			t.Error(err)
		}
		sizes := strings.Join(w.processes[Key{Container: "c1"}].sizes, " ")
		if sizes != "80x25 81x26" || string(got) != "typed" {
			t.Errorf("got %s and %q", sizes, got)
		}
	})
}

func TestAttachNeedsARunningContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.running = false
		if err := w.service.Attach(t.Context(), "c1", nil, &writeCloser{}, nil, false, nil); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("got %v", err)
		}
	})
}

// A shim that did not answer in time left the container waiting for the end of its input for ever:
// it is asked again, until the container has ended.
func TestTheInputOfAContainerEndsOnceItsShimAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		newStdio(w)
		own := Key{Container: "c1"}
		w.hang(true)
		w.service.EndStdin("c1")
		time.Sleep(time.Minute)
		w.hang(false)
		time.Sleep(time.Minute)
		w.mu.Lock()
		if !slices.Equal(w.closed, []Key{own}) {
			t.Errorf("closed: %v", w.closed)
		}
		w.mu.Unlock()

		w.hang(true)
		w.service.EndStdin("c1")
		w.service.EndStdin("c2") // there is no such container
		close(w.ended)
		time.Sleep(time.Minute)
		w.service.mu.Lock()
		defer w.service.mu.Unlock()
		if w.service.mu.all > 0 {
			t.Error("the shim of a container that has ended is still asked")
		}
	})
}

// A client whose input ends when berth has stopped was counted as one that leaves twice.
func TestTheInputMayEndAfterTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		newStdio(w)
		w.stop()
		w.service.EndStdin("c1")
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.closed) > 0 {
			t.Errorf("closed: %v; the service has stopped", w.closed)
		}
	})
}
