// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// PROPERTIES 34: the connection was lost before those who waited for it had looked. It ended their
// wait, and the probes of this berth for good.
func TestAConnectionThatIsLostAtOnceIsWaitedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		met := make(chan error, 1)
		go func() { met <- l.await(ctx) }()
		synctest.Wait()
		l.mu.Lock() // nobody looks between the two
		l.err = nil
		close(l.up)
		l.err = errors.New("its list failed")
		l.up = make(chan struct{})
		l.mu.Unlock()
		synctest.Wait()
		select {
		case err := <-met:
			t.Errorf("it was not waited for: %v", err)
		default:
			l.set(nil)
			if err := <-met; err != nil {
				t.Error(err)
			}
		}
	})
}
