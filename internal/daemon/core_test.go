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
		c := &Core{link: newLink()}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		met := make(chan error, 1)
		go func() { met <- c.Await(ctx) }()
		synctest.Wait()
		c.link.mu.Lock() // nobody looks between the two
		c.link.err = nil
		close(c.link.up)
		c.link.err = errors.New("its list failed")
		c.link.up = make(chan struct{})
		c.link.mu.Unlock()
		synctest.Wait()
		select {
		case err := <-met:
			t.Errorf("it was not waited for: %v", err)
		default:
			c.link.set(nil)
			if err := <-met; err != nil {
				t.Error(err)
			}
		}
	})
}
