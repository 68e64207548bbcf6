// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"sync"
	"time"

	"berth/internal/base/processors"
)

// starts thins out the starts of commands by the OCI runtime. Each one moves processes between
// control groups, which keeps the whole node from forking, so that a hundred at once take many
// times as long as a hundred a few at a time. Only some young ones run at once, and waiting ones
// are let in by age.
//
// No command waits without a bound for that of another container: a start is young for a quarter of
// a second at most, so that some of those that wait begin in each such span, even if others hang.
type starts struct {
	slots chan struct{}
	youth time.Duration // how long a start is young at most
}

func newStarts() *starts {
	return &starts{make(chan struct{}, max(4, 2*processors.Count())), 250 * time.Millisecond}
}

// enter waits until the start of a process may begin. done must be called when it is over. After an
// error the process is not needed any more.
func (s *starts) enter(ctx context.Context, p *process) (done func(), err error) {
	select {
	case s.slots <- struct{}{}:
	case <-p.unwanted:
		return nil, p.nobodyWaits()
	case <-p.s.stopping:
		return nil, p.nobodyWaits()
	case <-p.containerEnded:
		return nil, p.nobodyWaits()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-s.slots })
	old := time.AfterFunc(s.youth, leave)
	return func() { old.Stop(); leave() }, nil
}
