// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"sync"
)

// errNotYet is the error of the connection to containerd until the first one is made.
var errNotYet = errors.New("containerd has not answered since berth started")

// link is the state of the connection to containerd.
type link struct {
	once sync.Once
	met  chan struct{} // closed once it was there

	mu  sync.Mutex
	err error         // nil: it is there
	up  chan struct{} // closed while it is there
}

func newLink() *link {
	return &link{met: make(chan struct{}), err: errNotYet, up: make(chan struct{})}
}

// set notes that the connection is there, or why not, and reports whether that is a change.
func (l *link) set(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.err
	l.err = err
	switch {
	case was != nil && err == nil:
		close(l.up)
		l.once.Do(func() { close(l.met) })
	case was == nil && err != nil:
		l.up = make(chan struct{})
	default:
		return false
	}
	return true
}

// get returns nil while berth is connected to containerd and knows its images, and otherwise the
// reason why it is not.
func (l *link) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// connected returns a channel that is closed while the connection is there, or once it is there
// again.
func (l *link) connected() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// await waits until the connection is there, or until ctx ends. It returns what get returns then.
func (l *link) await(ctx context.Context) error {
	for {
		select {
		case <-l.connected():
		case <-ctx.Done():
			return l.get()
		}
		if l.get() == nil {
			return nil
		} // it was lost again meanwhile
	}
}
