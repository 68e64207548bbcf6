// SPDX-License-Identifier: Apache-2.0

package pod

import "sync"

// stops are the stops of a unit that are in flight. The zero value is none.
type stops struct {
	mu    sync.Mutex
	count int
	// closed while there are any; nil if channel was not called since the last one ended
	begun chan struct{}
	cut   bool // cutOff was called
}

// any reports whether a stop is in flight.
func (s *stops) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count > 0
}

// cutOff notes that the call of a stop is gone, and reports whether that is news.
func (s *stops) cutOff() (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news, s.cut = !s.cut, true
	return news
}

// begin notes that a stop is in flight, until end is called.
func (s *stops) begin() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count++; s.count == 1 {
		close(s.channelLocked())
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.count--; s.count == 0 {
			s.begun = nil
		}
	}
}

// channel returns a channel that is closed while a stop is in flight, or once the next one begins.
func (s *stops) channel() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channelLocked()
}

func (s *stops) channelLocked() chan struct{} {
	if s.begun == nil {
		s.begun = make(chan struct{})
	}
	return s.begun
}

// removing is the channel of a unit that is being removed.
var removing = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
